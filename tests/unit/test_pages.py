# SPDX-License-Identifier: Apache-2.0
"""README and docs/: what they tell a reader to type can be typed, and prints what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import pages
import tree
from commands import NAMES, command_line
from pages import Block, Page
from patchkit.errors import ExitCode
from patchkit.state import SetState
from serving.start import profiles
from unit.serving.model_folders import ModelFolder, published_config

WORDS = {page.name: page for page in pages.everything()}
BLOCKS = [block for page in WORDS.values() for block in page.blocks if block.language == "console"]
FREE = [block for block in BLOCKS if not block.marks and not block.page.name.endswith(pages.CHINESE)]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (tree.PROJECT / "Makefile").read_text(), re.MULTILINE))
KIT = tree.Kit(tree.PROJECT)
VARIABLE = re.compile(r"[A-Z_]+=\S*")


def name_of(page: Page) -> str:
    return page.name


def where(block: Block) -> str:
    return block.where


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_a_readme_is_read_in_one_sitting(name: str) -> None:
    assert len(WORDS[name].text.splitlines()) <= 150


@pytest.mark.parametrize("page", WORDS.values(), ids=name_of)
def test_links_resolve(page: Page) -> None:
    dead = [link for link in page.links if not link.startswith("http") and not target_of(page, link)]
    assert dead == []


def target_of(page: Page, link: str) -> bool:
    path, _, anchor = link.partition("#")
    file = (page.path.parent / path) if path else page.path
    if not anchor:
        return file.exists()
    titles = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages.english(), ids=name_of)
def test_a_page_and_its_chinese_twin_have_the_same_headings_and_commands(page: Page) -> None:
    twin = pages.chinese_of(page)
    if page.path.parent == tree.PROJECT and page.path.name != "README.md":
        assert not twin.exists()
        return
    other = Page(twin, twin.read_text("utf-8"))
    assert other.headings == page.headings
    assert [(b.language, b.marks, b.text) for b in other.blocks] == [
        (b.language, b.marks, b.text) for b in page.blocks
    ]


def test_every_page_of_docs_is_in_its_table_of_contents() -> None:
    for index, ending in (("docs/README.md", ".md"), (f"docs/README{pages.CHINESE}", pages.CHINESE)):
        listed = {link.partition("#")[0] for link in WORDS[index].links}
        there = {
            path.name
            for path in pages.DOCS.glob(f"*{ending}")
            if path.name != Path(index).name and path.name.endswith(pages.CHINESE) == (ending != ".md")
        }
        assert there <= listed


@pytest.mark.parametrize("page", WORDS.values(), ids=name_of)
def test_no_command_hides_in_a_block_that_nothing_runs(page: Page) -> None:
    for block in page.blocks:
        first_words = {line.split()[0] for line in block.text.splitlines() if line.split()}
        if block.language != "console":
            assert first_words.isdisjoint({"$", "make", "kit", "scripts/kit", "docker", "kubectl"}), (
                block.where
            )
        else:
            assert list(block.steps()), block.where


@pytest.mark.parametrize("block", BLOCKS, ids=where)
def test_a_mark_says_who_runs_a_block(block: Block) -> None:
    for mark in block.marks:
        if mark.startswith("run-by="):
            [place, *_] = mark.removeprefix("run-by=").split("::")
            assert (tree.PROJECT / place).exists()
        else:
            assert mark in {"container", "npu"}
    assert len(block.marks) <= 1


@pytest.mark.parametrize("block", BLOCKS, ids=where)
def test_every_command_of_a_block_is_one_that_exists(block: Block) -> None:
    for step in block.steps():
        require_known(step.command)


@pytest.mark.parametrize("page", WORDS.values(), ids=name_of)
def test_every_command_in_a_sentence_is_one_that_exists(page: Page) -> None:
    for text in page.inline:
        if re.match(r"(kit|make|scripts/\S+|docker/\S+\.sh) \S|[A-Z]+=\S+ scripts/", text):
            require_known(text)


def require_known(command: str) -> None:
    words = shlex.split(command, comments=True)
    while words and VARIABLE.fullmatch(words[0]):
        words.pop(0)
    match words:
        case ["kit" | "scripts/kit", verb, *rest]:
            require_options(verb, rest)
        case ["python3", archive, verb, *rest] if archive.endswith("kit.pyz"):
            require_options(verb, rest)
        case ["make", *rest]:
            assert {word for word in rest if not VARIABLE.match(word)} <= TARGETS, command
        case [program, *_] if "/" in program and not program.startswith("/"):
            assert (tree.PROJECT / program).exists(), command


def require_options(verb: str, rest: list[str]) -> None:
    """Not run: a page may say DIR or FILE."""
    if verb.startswith("-"):
        return
    assert verb in NAMES, verb
    parser = command_line.build_parser("kit", [verb])
    known = set(re.findall(r"--[a-z][a-z-]*", KIT(verb, "--help").out))
    ours = rest[: rest.index("--")] if "--" in rest else rest
    assert {word.partition("=")[0] for word in ours if word.startswith("--")} <= known, (verb, rest)
    assert parser.prog == "kit"


@pytest.mark.parametrize("block", FREE, ids=where)
def test_a_block_that_can_be_run_anywhere_prints_what_the_page_says(block: Block, tmp_path: Path) -> None:
    ModelFolder(config=published_config(), shards=27).write(tmp_path / "Step-3.7-Flash")
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "kit").symlink_to(tree.PROJECT / "scripts" / "kit")
    environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "COLUMNS": "110"}
    for step in block.steps():
        run = subprocess.run(
            ["bash", "-c", step.command],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        printed = run.stdout.replace(f"{commands}/kit", "kit").replace(f"{tmp_path}/", "")
        assert "Traceback" not in printed
        assert step.output is None or pages.says(printed, step.output), printed


@pytest.mark.parametrize("name", ["docs/flags.md", f"docs/flags{pages.CHINESE}"])
def test_the_table_of_flags_is_what_the_data_say(name: str) -> None:
    """To write it anew: ``KIT_UPDATE_GOLDEN=1 make test-unit``."""
    page, table = WORDS[name], KIT("flags").out.strip()
    kept = re.sub(r"(?:^\|.*\n)+", lambda _: f"{table}\n", page.text, count=1, flags=re.MULTILINE)
    if os.environ.get("KIT_UPDATE_GOLDEN"):
        page.path.write_text(kept, "utf-8")
    assert kept == page.text


def test_the_pages_know_every_profile_state_and_exit_code() -> None:
    for ending in (".md", pages.CHINESE):
        refusals, serving = (WORDS[f"docs/{name}{ending}"].text for name in ("refusals", "serving"))
        assert re.findall(r"^\| (\d) \|", refusals, re.MULTILINE) == [str(int(code)) for code in ExitCode]
        assert all(re.search(rf"^\| {state.value}\b", refusals, re.MULTILINE) for state in SetState)
        assert all(f"| `{name}` |" in serving for name in profiles.names())


def test_what_is_left_out_of_an_output_is_all_that_may_differ() -> None:
    assert pages.says("one\ntwo\nthree 0.1 s\n", "one\n...\nthree ... s")
    assert pages.says("one\nthree", "one\n...\nthree") is False
    assert not pages.says("one\ntwo\n", "one")
    assert not pages.says("one", "two")
