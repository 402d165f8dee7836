# SPDX-License-Identifier: Apache-2.0
"""The profiles of the kit, and the small part of YAML that they are written in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tree
from patchkit.errors import Refused
from serving.start import profiles

FOLDER = tree.PROJECT / "scripts" / "serving" / "profiles"

SAMPLE = """\
# SPDX-License-Identifier: Apache-2.0
# For a test.

# Because of
# two reasons.
max-model-len: 4096

# A switch.
trust-remote-code: true
"""


def values(name: str) -> dict[str, str]:
    return {setting.name: setting.value for setting in profiles.load(name).settings}


def test_the_names_are_those_of_the_files_and_the_default_comes_first() -> None:
    assert profiles.names()[0] == profiles.DEFAULT == "bf16-tp8"
    assert set(profiles.names()) == {path.stem for path in FOLDER.iterdir()}
    assert {"fp16-tp8", "long-131072", "long-262144", "expert-parallel", "agent"} < set(profiles.names())


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.iterdir())])
def test_every_profile_serves_this_model_and_says_why(name: str) -> None:
    found = profiles.load(name)
    flags = values(name)
    assert found.summary.endswith(".")
    assert all(setting.why.endswith(".") for setting in found.settings)
    assert (flags["trust-remote-code"], flags["tensor-parallel-size"]) == ("", "8")
    assert flags["reasoning-parser"] == "step3p5"
    assert flags["dtype"] == ("float16" if name == "fp16-tp8" else "bfloat16")
    assert not {"host", "port", "api-key"} & flags.keys()  # the script's own


def test_what_sets_the_profiles_apart() -> None:
    assert values("agent")["tool-call-parser"] == "step3p5"
    assert values("agent")["enable-auto-tool-choice"] == ""
    assert "enable-expert-parallel" in values("expert-parallel")
    assert int(values("long-131072")["max-model-len"]) >= 131072 + 1024  # the guide's longest row
    assert values("long-262144")["max-model-len"] == "262144"
    assert values("fp16-tp8")["max-model-len"] == "4096"


def test_a_profile_becomes_the_words_of_a_command_line() -> None:
    found = profiles.parse("sample", SAMPLE)
    assert found.arguments == ("--max-model-len", "4096", "--trust-remote-code")
    assert found.summary == "For a test."
    assert found.settings[0].why == "Because of two reasons."
    assert profiles.text(found).splitlines()[1] == "  --max-model-len 4096  Because of two reasons."


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("port 8000", "expected a line such as"),
        ("port:8000", "expected a line such as"),
        ("  port: 8000", "expected a line such as"),
        ("port: 8000 # why", "expected a line such as"),
        ("port: [a, b]", "would not read"),
        ("port: [1,2]", "would not read"),
        ("port: [1e5]", "would not read"),
        ("port: []", "would not read"),
        ("port: [[1]]", "would not read"),
        ('name: "a"', "would not read"),
        ("name: {a: b}", "would not read"),
        ("name: {}", "would not read"),
        ('name: {"a": 010}', "would not read"),
        ('name: {"a": null}', "would not read"),
        ('name: {"a": "b c"}', "would not read"),
        ('name: {"a": 1, "a": 2}', "would not read"),
        ('name: {"a": 1} # why', "expected a line such as"),
        ("name: &a", "would not read"),
        ("name: off", "would not read"),
        ("name: NULL", "would not read"),
        ("name: 010", "would not read"),
        ("name: 2026-01-31", "would not read"),
        ("name: 1e5", "would not read"),
        ("trust-remote-code: false", "drops such a line without a word"),
    ],
)
def test_what_yaml_might_read_otherwise_is_refused(line: str, expected: str) -> None:
    with pytest.raises(Refused) as refusal:
        profiles.parse("mine", f"# why\n{line}\n")
    assert expected in str(refusal.value)
    assert "line 2 of the profile mine" in str(refusal.value)


def test_a_flag_without_a_reason_and_a_flag_given_twice() -> None:
    with pytest.raises(Refused, match="port has no reason"):
        profiles.parse("mine", "# head\n\nport: 8000\n")
    with pytest.raises(Refused, match="gives port twice"):
        profiles.parse("mine", "# a\nport: 8000\n# b\nport: 8001\n")


def test_a_file_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(SAMPLE)
    assert profiles.load(str(file)).arguments[0] == "--max-model-len"


@pytest.mark.parametrize("name", ["nope", "", "..", "BF16-TP8", "/no/such/file.yaml", "/dev/zero", "bf16\n"])
def test_a_profile_that_is_not_there(name: str) -> None:
    with pytest.raises(Refused) as refusal:
        profiles.load(name)
    assert "bf16-tp8, agent" in refusal.value.next_step


def test_json_is_one_word_and_a_list_a_word_for_each_item() -> None:
    found = profiles.parse("mine", '# a\na-config: {"b": "c", "d": 3, "e": true}\n# f\ng: [4, 8]\n')
    assert found.arguments == ("--a-config", '{"b": "c", "d": 3, "e": true}', "--g", "4", "8")


def test_what_a_profile_needs_stands_in_its_head_and_is_no_reason() -> None:
    found = profiles.parse("mine", f"# needs-checkpoint: big\n# needs-sets: one two\n{SAMPLE}")
    assert (found.needs.sets, found.needs.checkpoint) == (("one", "two"), "big")
    assert found.summary == "For a test."
    assert profiles.text(found).splitlines()[1:4] == [
        "  needs the set one",
        "  needs the set two",
        "  needs a checkpoint of the kind big",
    ]
    assert profiles.parse("mine", SAMPLE).needs == profiles.Needs()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# needs-sets:\n", "line 1 of the profile mine: needs-sets says ''"),
        ("# needs-sets: One, two\n", "needs-sets says 'One, two'"),
        ("# needs-checkpoint: a b\n", "expected one kind of checkpoint"),
        ("# needs-cards: 8\n", "needs-cards, which the kit does not know"),
        ("#needs_sets:a\n# needs-sets: b\n", "line 2 of the profile mine is '# needs-sets: b'"),
        ("# why\nport: 8000\n# needs-sets: a\n", "which is below a flag"),
    ],
)
def test_a_need_that_makes_no_sense_is_refused(text: str, expected: str) -> None:
    with pytest.raises(Refused) as refusal:
        profiles.parse("mine", text)
    assert expected in str(refusal.value)


@given(st.text(alphabet=st.sampled_from("ab-:# \n0true\tf'\"[{&")) | st.text())
def test_any_text_is_a_profile_or_refused(text: str) -> None:
    try:
        found = profiles.parse("any", text)
    except Refused:
        return
    assert all(setting.name and setting.why for setting in found.settings)
