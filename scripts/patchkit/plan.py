# SPDX-License-Identifier: Apache-2.0
"""What a user wishes, and what would have to change for it. Nothing here writes.

A wish is the sets that shall be there in the end, each with what it stands on. For each
file that gives one rung, so a file is written once whatever the way from here to there.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from . import drift, recognition
from .chain import PRISTINE, short
from .errors import Refused
from .manifest import ALL, BASE, Package, PatchSet, Sentinel
from .release import Release
from .state import ChainStatus, FileState, FileStatus, Installation, SetState, is_other_release, read
from .target import Target


@dataclass(frozen=True)
class Change:
    """One file from one content to another; None is "no such file"."""

    path: Path
    name: PurePosixPath
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Wish:
    """The end state: the names of the sets that shall be there.

    ``concerned`` are those that are there or shall be: what may not be drifted.
    ``raised`` are those that the user asked for: all that they rely on must be there.
    """

    wanted: frozenset[str]
    concerned: frozenset[str]
    raised: frozenset[str]


def named(release: Release, names: Sequence[str]) -> frozenset[str]:
    """The sets that the words of a command line mean.

    Raises:
        Refused: a word that names no set of this release.
    """
    known = {BASE: {BASE}, ALL: {s.name for s in release.sets}} | {s.name: {s.name} for s in release.opt_ins}
    for name in names:
        if name not in known:
            raise Refused(*_unknown(release, name))
    return frozenset(found for name in names for found in known[name])


def _unknown(release: Release, name: str) -> tuple[str, str]:
    sets = ", ".join(s.name for s in release.sets)
    elsewhere = [other.id for other in release.others if name in {s.name for s in other.opt_ins}]
    if elsewhere:
        return (
            f"the set {name} is for {' and '.join(elsewhere)}; this installation is {release.id}, "
            f"and for that there are: {sets}",
            "{kit} sets",
        )
    return f"there is no set {name} for {release.id}; there are: {sets}", "{kit} sets"


def to_apply(found: Installation, names: Sequence[str]) -> Wish:
    """The named sets and the base, beside what is there already."""
    wanted = named(found.release, names) | {s.name for s in found.present}
    return Wish(wanted, concerned=wanted, raised=wanted)


def to_revert(found: Installation, names: Sequence[str]) -> Wish:
    """Without the named sets, or, where none is named, without any.

    Raises:
        Refused: the base is named, and an opt-in set that is not stays on it.
    """
    there = frozenset(s.name for s in found.present)
    gone = there if not names or ALL in names else named(found.release, names)
    wanted = there - gone
    if BASE in gone and wanted:
        stay = " and ".join(sorted(wanted))
        raise Refused(
            f"{stay} {'stands' if len(wanted) == 1 else 'stand'} on the base, and would stay without it",
            f"{{kit}} revert    # {stay} with it",
        )
    if wanted == {BASE} and not found.base.begun:
        wanted = frozenset()
    return Wish(wanted, concerned=there | gone, raised=frozenset())


@dataclass(frozen=True)
class Goal:
    """One file that concerns a wish, and the rung where it shall be."""

    on_disk: ChainStatus
    rung: int

    @property
    def reached(self) -> bool:
        return self.on_disk.rung == self.rung

    @property
    def text(self) -> bytes | None:
        """The content on that rung, computed and proved by its hash.

        Raises:
            Refused: the kit is damaged.
        """
        found = self.on_disk
        assert found.rung is not None  # noqa: S101 - `require` has seen to it
        return found.chain.text_on(self.rung, found.text, found.rung)


def goals(found: Installation, wish: Wish) -> tuple[Goal, ...]:
    """Of every file of the sets concerned, in the order of installation."""
    return tuple(
        Goal(status, status.chain.height(wish.wanted))
        for status in found.chains
        if status.chain.height(wish.concerned)
    )


def changes(found: Installation, wish: Wish) -> tuple[Change, ...]:
    """What to write for a wish, in order: what goes, last first, then what comes.

    Raises:
        Refused: it cannot be had here; a file to change is a bind mount; the kit is damaged.
    """
    texts = require(found, wish)
    todo = [goal for goal in goals(found, wish) if not goal.reached]
    down = [goal for goal in reversed(todo) if goal.rung < (goal.on_disk.rung or 0)]
    ordered = [*down, *(goal for goal in todo if goal not in down)]
    for goal in ordered:
        if goal.on_disk.mounted:
            raise Refused(
                f"{goal.on_disk.path} is a bind mount (docker run -v ...), "
                "which cannot be replaced from inside",
                "start the container without that -v option, or mount what this builds: {kit} overlay",
            )
    return tuple(
        Change(found.path, found.chain.path, found.text, texts[found.chain.path])
        for found in (goal.on_disk for goal in ordered)
    )


Texts: TypeAlias = Mapping[PurePosixPath, bytes | None]


def require(found: Installation, wish: Wish) -> Texts:
    """Refuse what is not what the patches were made from, or would not stand in the end.

    Returns:
        The content of every file concerned in the end.

    Raises:
        Refused: another release, a drifted or missing file, an unfit neighbour.
    """
    if found.state is SetState.UNSUPPORTED:
        raise Refused(*_other_release(found))
    if bad := unknown_files(found, wish.concerned):
        raise Refused(*_drifted(found, bad))
    texts = {goal.on_disk.chain.path: goal.text for goal in goals(found, wish)}
    changed = {g.on_disk.chain.path for g in goals(found, wish) if not g.reached}
    for status in found.sets:
        for sentinel in missed(found, status.patch_set, texts) if status.name in wish.wanted else ():
            if status.name in wish.raised or sentinel.path in changed:
                raise Refused(*_unfit(found, status.name, sentinel, wish))
    return texts


def unknown_files(found: Installation, sets: Collection[str]) -> tuple[FileStatus, ...]:
    """The drifted and missing files of some sets, each once."""
    bad = [
        file
        for status in found.sets
        if status.name in sets
        for file in status.in_state(FileState.DRIFTED, FileState.MISSING)
    ]
    return tuple({file.file.path: file for file in reversed(bad)}.values())[::-1]


def missed(found: Installation, patch_set: PatchSet, texts: Texts) -> Iterator[Sentinel]:
    """What a set relies on in a neighbour and does not find there: in ``texts``, else on the disk."""
    for sentinel in patch_set.sentinels:
        in_texts = sentinel.path in texts
        text = texts[sentinel.path] if in_texts else read(found.target.file(sentinel.path))
        if not holds(sentinel, text):
            yield sentinel


def holds(sentinel: Sentinel, text: bytes | None) -> bool:
    return text is not None and sentinel.contains.encode() in text


# --- why not ----------------------------------------------------------------------------


def _unfit(found: Installation, name: str, sentinel: Sentinel, wish: Wish) -> tuple[str, str]:
    """A neighbour that is not as a set needs it: by another set's doing, or by nobody's that is known."""
    relies = f"the set {name} relies on {sentinel.contains!r} in {sentinel.path}"
    for status in found.chains:
        if status.chain.path != sentinel.path or status.rung is None:
            continue
        goal, edits = status.chain.height(wish.wanted), status.chain.edits
        having = [
            rung
            for rung in status.chain.rungs
            if holds(sentinel, status.chain.text_on(rung, status.text, status.rung))
        ]
        if below := [rung for rung in having if rung < goal]:
            other = edits[below[-1]].owner
            return f"{relies}, and the set {other} takes it away", "{kit} sets    # and choose one of the two"
        if having:
            other = edits[having[0] - 1].owner
            return f"{relies}, which the set {other} brings", "{kit} sets    # and take both, or neither"
    return (
        f"{found.target.file(sentinel.path)} does not contain {sentinel.contains!r}, "
        f"which {sentinel.needed_by} relies on",
        "reinstall the package, or start from a fresh container",
    )


def _other_release(found: Installation) -> tuple[str, str]:
    """Versions that no release has together: each with what would fit the rest of the installation."""
    releases, target = (found.release, *found.release.others), found.target
    near = recognition.nearest(releases, target)
    if two := _of_two_releases(releases, target):
        what = f"the packages are of different releases: {two}"
    else:
        odd = [
            f"{package.name} {location.version} at {location.folder} (wanted {_wanted(near, package)})"
            for package in found.release.packages
            if is_other_release(package, location := target.locations[package.import_name])
        ]
        sets = "this set is" if len(near) == 1 else "the sets are"
        what = f"{sets} for other releases: found {', '.join(odd)}"
    return what, f"use an image of vllm-ascend {' or '.join(release.id for release in near)}"


def _of_two_releases(releases: Sequence[Release], target: Target) -> str:
    """The packages, each with the release that it is of, where each is of one, but not all of the same."""
    rows = []
    for package in releases[0].packages:
        location = target.locations[package.import_name]
        of = [r.id for r in releases if recognition.says(r.package(package.import_name), location)]
        if not of:
            return ""
        rows.append(f"{package.name} {location.version} at {location.folder} of {' or '.join(of)}")
    return ", ".join(rows)


def _wanted(releases: Sequence[Release], package: Package) -> str:
    supported = [text for r in releases for text in r.package(package.import_name).supported]
    return " or ".join(dict.fromkeys(supported))


def _drifted(found: Installation, bad: Sequence[FileStatus]) -> tuple[str, str]:
    first = bad[0].on_disk
    if first.trouble is not None:
        return first.trouble.what, first.trouble.next_step
    clauses = [
        f"{s.path} is neither pristine nor applied (expected sha256 {expected(s)}, "
        f"found {short(s.found)}): {drift.explain(s, found.release)}"
        for s in bad
    ]
    if other := recognition.files_of_another(found):
        clauses.insert(0, other)
    if found.begun and any(s.file.owner == BASE for s in bad):
        clauses.append(f"the base is drifted, and on it stands {' and '.join(s.name for s in found.begun)}")
    checkout = found.target.locations[bad[0].file.package].checkout
    if first.chain.digest(PRISTINE) is None:
        cure = f"mv {shlex.quote(str(first.path))} /tmp/    # out of the way"
    elif checkout is not None:
        cure = f"git -C {shlex.quote(str(checkout))} checkout -- {first.chain.path}"
    else:
        package = found.release.package(bad[0].file.package)
        cure = f"reinstall {package.name} {package.supported[0]}, or start from a fresh container"
    return "; ".join(clauses), cure


def expected(status: FileStatus) -> str:
    """The hashes that a file may have as one set sees it: up to its own edit."""
    chain = status.on_disk.chain
    known = [short(chain.digest(rung)) for rung in range(chain.rung_of_edit(status.file) + 1)]
    return f"{', '.join(known[:-1])} or {known[-1]}"
