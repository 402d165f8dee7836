# SPDX-License-Identifier: Apache-2.0
"""Profiles and the table of flags against vLLM's own argument parser, and the table's sources.

The parser is asked in one process for all questions: to import it takes half a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from serving.start import flags, profiles
from serving.start.flags import Evidence, Fate, Row

TABLE = flags.rows()
FOLDER = Path(profiles.__file__).parent.parent / "profiles"
TIMEOUT_S = 180

# Run by the sandbox's Python: from lists of words behind "vllm" to what became of each.
PARSE = """
import io, json, sys
from contextlib import redirect_stderr
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser(prog="vllm")
make_arg_parser(parser.add_subparsers(dest="subparser").add_parser("serve"))
given = json.load(sys.stdin)
answers = []
for words in given:
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            found = vars(parser.parse_args(words))
        answers.append({"found": {k: v for k, v in found.items() if isinstance(v, (str, int, float, list))}})
    except SystemExit:
        answers.append({"error": said.getvalue().strip().splitlines()[-1]})
print(json.dumps(answers))
"""


def profile_words(path: Path) -> list[str]:
    """As ``serve.sh`` gives them; a flag behind the file must win over it."""
    return ["serve", "/model", "--config", str(path), "--host", "127.0.0.1", "--port", "8123", "--seed", "7"]


PROFILES = sorted(FOLDER.glob("*.yaml"))
assert PROFILES, f"no profile in {FOLDER}"
EXAMPLES = [
    ["serve", *([] if not row.example[0].startswith("-") else ["/model"]), *row.example] for row in TABLE
]


@pytest.fixture(scope="module")
def answers(sandbox_python: Path, pristine_root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What vLLM 0.20.2 makes of every profile, then of every example of the table."""
    scratch = tmp_path_factory.mktemp("parser")
    override = [*profile_words(PROFILES[0]), "--max-model-len", "1234"]
    questions = [*map(profile_words, PROFILES), *EXAMPLES, override]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(scratch),
        "PYTHONPATH": str(pristine_root),
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_PLUGINS": "",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    run = subprocess.run(
        [str(sandbox_python), "-P", "-c", PARSE],
        input=json.dumps(questions),
        env=environment,
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert len(found) == len(questions)
    return list(found)


@pytest.mark.parametrize("path", PROFILES, ids=[path.stem for path in PROFILES])
def test_vllm_takes_every_flag_of_every_profile_as_it_is_meant(path: Path, answers: list[Any]) -> None:
    found = answers[PROFILES.index(path)].get("found")
    assert found, answers[PROFILES.index(path)]
    for setting in profiles.load(path.stem).settings:
        value = found[setting.name.replace("-", "_")]
        expected = [setting.value] if isinstance(value, list) else setting.value
        assert (value if isinstance(value, list) else str(value)) == (expected or "True")
    assert (found["host"], found["port"], found["seed"]) == ("127.0.0.1", 8123, 7)


def test_a_flag_behind_the_profile_wins(answers: list[Any]) -> None:
    assert answers[-1]["found"]["max_model_len"] == 1234


@pytest.mark.parametrize("row", TABLE, ids=[row.title for row in TABLE])
def test_vllm_parses_or_rejects_a_flag_as_the_table_says(row: Row, answers: list[Any]) -> None:
    answer = answers[len(PROFILES) + TABLE.index(row)]
    if row.fate is Fate.PARSED:
        assert "found" in answer, answer
    else:
        assert "unrecognized arguments" in answer["error"]


SOURCES = [(row.title, item) for row in TABLE for item in row.evidence]


@pytest.mark.parametrize(("title", "item"), SOURCES, ids=[f"{title}: {item.text}" for title, item in SOURCES])
def test_the_sources_of_the_table_say_so(title: str, item: Evidence, pristine_root: Path) -> None:
    found = item.text in (pristine_root / item.file).read_text("utf-8")
    assert found is not item.absent, title
