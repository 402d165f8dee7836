# SPDX-License-Identifier: Apache-2.0
"""What is said about flags of other recipes, and how a command line is read for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchkit.errors import BundleDamaged
from serving import toml_rows
from serving.start import arguments, flags
from serving.start.arguments import Given
from serving.start.flags import Row, Verdict

TABLE = flags.rows()


def verdicts(*words: str) -> list[Verdict]:
    return [advice.row.verdict for advice in flags.advise(words)]


@pytest.mark.parametrize("row", TABLE, ids=[row.title for row in TABLE])
def test_every_example_is_answered_by_its_own_row_alone(row: Row) -> None:
    assert [advice.row for advice in flags.advise(row.example)] == [row]


@pytest.mark.parametrize("row", TABLE, ids=[row.title for row in TABLE])
def test_every_row_is_one_sentence_with_a_source(row: Row) -> None:
    assert row.sentence.endswith(".")
    assert row.sentence.count(". ") == 0
    assert row.evidence
    if row.verdict in {Verdict.DOES_NOT_WORK, Verdict.NO_EFFECT, Verdict.NOT_TRIED}:
        assert "; " in row.sentence  # what to do instead


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (("/data/Step-3.7-Flash-FP8",), Verdict.DOES_NOT_WORK),
        (("m", "--quantization", "modelopt"), Verdict.DOES_NOT_WORK),
        (("m", "-q", "modelopt_fp4"), Verdict.DOES_NOT_WORK),
        (("m", "--kv-cache-dtype=fp8_e4m3"), Verdict.DOES_NOT_WORK),
        (("m", "--speculative_config", '{"method":"step3p5_mtp"}'), Verdict.NOT_TRIED),
        (("m", "--speculative-config.method", "mtp"), Verdict.NOT_TRIED),
        (("m", "--disable_cascade_attn"), Verdict.NO_EFFECT),
        (("m", "--speculative-algorithm", "EAGLE"), Verdict.DOES_NOT_WORK),
        (("m", "--mm-attention-backend", "fa4"), Verdict.DOES_NOT_WORK),
        (("m", "--enable-lora"), Verdict.DOES_NOT_WORK),
        (("m", "--dtype", "half"), Verdict.WORKS),
        (("m", "--additional-config.weight_prefetch_config.enabled", "true"), Verdict.DOES_NOT_WORK),
        (("m", "--attention-config", '{"backend":"FLASHINFER"}'), Verdict.NO_EFFECT),
    ],
)
def test_flags_in_every_spelling(words: tuple[str, ...], verdict: Verdict) -> None:
    assert verdicts(*words) == [verdict]


@pytest.mark.parametrize(
    "words",
    [
        ("/data/Step-3.7-Flash",),
        ("/data/fp8-tests-not/Step-3.7-Flashfp80",),
        ("m", "--kv-cache-dtype", "auto"),
        ("m", "--dtype", "bfloat16"),
        ("m", "--additional-config", '{"weight_prefetch_config": {"enabled": false}}'),
        ("m", "--max-num-seqs", "8", "--reasoning-parser", "step3p5"),
    ],
)
def test_nothing_is_said_where_there_is_nothing_to_say(words: tuple[str, ...]) -> None:
    assert verdicts(*words) == []


FLAG = """
[[flag]]
title = "--a"
flags = ["--a"]
verdict = "works"
sentence = "it works."
example = ["--a"]
stands = ["vllm/file.py: text"]
"""


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (FLAG.replace('"works"', '"fine"'), "'fine' is none of does_not_work, no_effect, not_tried, works"),
        (FLAG.replace('flags = ["--a"]\n', ""), "'--a' names neither a flag nor a model"),
        (FLAG.replace('stands = ["vllm/file.py: text"]\n', ""), "'--a' has no evidence"),
        (FLAG + 'value = "("\n', "is no regular expression"),
    ],
)
def test_a_damaged_table_is_refused_in_one_sentence(
    damage: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "flags.toml"
    file.write_text(damage)
    monkeypatch.setattr(toml_rows, "files", lambda *_: (file,))

    with pytest.raises(BundleDamaged, match=r"the kit's own table flags.toml is damaged: ") as refused:
        flags.rows.__wrapped__()

    assert problem in str(refused.value)


def test_a_flag_given_twice_is_answered_once() -> None:
    assert len(flags.advise(["m", "--enable-lora", "--enable-lora"])) == 1


def test_the_table_has_a_row_for_each_row() -> None:
    lines = flags.table().splitlines()
    assert len(lines) == len(TABLE) + 2
    assert {line.count("|") for line in lines} == {5}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("m", "-tp", "8"), (Given("--tensor-parallel-size", "8"),)),
        (("--max_model_len=4",), (Given("--max-model-len", "4"),)),
        (("--a", "--b", "-1"), (Given("--a"), Given("--b", "-1"))),
        (("--c", '{"x": {"y": 1}, "z": []}'), (Given("--c.x.y", "1"), Given("--c.z", "[]"))),
        (("--c", '{"x": '), (Given("--c", '{"x": '),)),
        (("--c.some_key", "1"), (Given("--c.some_key", "1"),)),
    ],
)
def test_a_command_line_is_read_as_vllm_reads_it(words: tuple[str, ...], expected: tuple[Given, ...]) -> None:
    assert arguments.given(words) == expected


def test_the_last_value_counts_and_the_model_is_the_first_word() -> None:
    words = ("/m", "--port", "1", "--port=2")
    assert arguments.value(words, "--port") == "2"
    assert arguments.model(words) == "/m"
    assert arguments.model(("--model", "/other")) == "/other"


@given(st.lists(st.text(max_size=12) | st.just("--c") | st.just('{"a":{"b":1}}'), max_size=8))
def test_any_words_are_read(words: list[str]) -> None:
    assert all(isinstance(str(advice), str) for advice in flags.advise(words))
