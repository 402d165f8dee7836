# SPDX-License-Identifier: Apache-2.0
"""What a person reads, and what ``--json`` gives to a program. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sized
from typing import TYPE_CHECKING, Any

from . import drift
from .chain import PRISTINE, short
from .errors import ExitCode, KitError, NotPutBack
from .plan import Texts, Wish, goals
from .release import Release
from .state import ChainStatus, FileState, FileStatus, Installation, SetState, SetStatus, word
from .unified_diff import split_lines

if TYPE_CHECKING:
    from .overlay import Built
    from .transaction import Outcome


def heading(found: Installation) -> str:
    """The release, and the packages it is for: name, version, folder."""
    lines = [found.release.title, ""]
    for package in found.release.packages:
        location = found.target.locations[package.import_name]
        lines.append(f"  {package.name:<12} {location.version or 'version unknown':<16} {location.folder}")
        for other in location.others:
            lines.append(f"  {'':<12} {'not imported':<16} {other} (a second copy; the kit leaves it alone)")
    return "\n".join(lines)


def files(found: Installation) -> str:
    """The files of the base, and of each opt-in set that is there, under its name."""
    parts = [_files_of(found.base, found)]
    parts += [f"{s.name}: {s.patch_set.title}\n\n{_files_of(s, found)}" for s in found.begun]
    return "\n\n".join(parts)


def _files_of(status: SetStatus, found: Installation) -> str:
    """One line a file: state, name, and the hash that was found."""
    lines = []
    for file in status.files:
        note = _set_on(file) and f", {_set_on(file)}"
        note += ", mounted" if file.mounted else ""
        lines.append(f"  {word(file) + note:<17} {file.file.path!s:<41} {short(file.found)}")
        if file.state in {FileState.DRIFTED, FileState.MISSING}:
            lines.append(f"  {'':<17} expected {_expected(file)}")
            lines.append(f"  {'':<17} {drift.explain(file, found.release)}")
    return "\n".join(lines)


def _set_on(file: FileStatus) -> str:
    """The opt-in set whose edit lies on the one that is spoken of; empty where none does."""
    owner = file.on_disk.owner
    return owner if file.state is FileState.APPLIED and owner != file.file.owner else ""


def _expected(file: FileStatus) -> str:
    return f"{short(file.on_disk.chain.digest(PRISTINE))} (pristine) or {short(file.file.after)} (applied)"


def summary(found: Installation, asked: Collection[str] = ()) -> str:
    """One sentence on the base, and one on each opt-in set that is there or asked about."""
    match found.state:
        case SetState.NATIVE:
            first = found.release.packages[0]
            return (
                f"native: not needed from {first.name} {first.native_from} on, which has the model by itself."
            )
        case SetState.UNSUPPORTED:
            releases = (found.release, *found.release.others)
            sets = "this set is" if len(releases) == 1 else "the sets are"
            return f"unsupported: {sets} for {', or for '.join(map(_packages, releases))}."
    opt_ins = [status for status in found.sets[1:] if status.begun or status.name in asked]
    return " ".join([_of_set(found.base), *(f"{status.name} {_of_set(status)}" for status in opt_ins)])


def _packages(release: Release) -> str:
    return " and ".join(f"{p.name} {' or '.join(p.supported)}" for p in release.packages)


def _of_set(status: SetStatus) -> str:
    """One sentence on a whole set."""
    total = len(status.files)
    applied = len(status.in_state(FileState.APPLIED))
    match status.state:
        case SetState.DRIFTED:
            bad = status.in_state(FileState.DRIFTED, FileState.MISSING)
            return f"drifted: {len(bad)} of {total} files {_are(bad)} neither pristine nor applied."
        case SetState.APPLIED:
            return f"applied: {applied} of {total} files."
        case SetState.PRISTINE:
            return f"{word(status)}: none of the {total} files is applied."
    names = ", ".join(str(file.file.path) for file in status.in_state(FileState.PRISTINE))
    verb = _are(status.in_state(FileState.APPLIED))
    return f"partial: {applied} of {total} files {verb} applied; not applied: {names}."


def _are(things: Sized) -> str:
    return "is" if len(things) == 1 else "are"


def symptoms(found: Installation) -> str:
    """What serving the model on this installation would look like; empty where all is well."""
    if found.state is not SetState.PARTIAL:
        return ""
    lines = [f"  - {symptom.text}" for symptom in found.symptoms]
    return "\n".join(["As it is, Step-3.7-Flash would show:", *lines])


def changed(outcome: Outcome) -> str:
    """One line for each file that was written, from which content to which."""
    found = {status.path: status for status in outcome.before.chains}
    after = {status.path: status for status in outcome.after.chains}
    lines = []
    for change in outcome.changes:
        verb = "removed" if change.after is None else "created" if change.before is None else "replaced"
        hashes = f"{short(found[change.path].found)} -> {short(after[change.path].found)}"
        lines.append(f"  {verb:<9} {change.name!s:<41} {hashes}")
    for path in outcome.leftovers:
        lines.append(f"  warning   the temporary file {path} could not be removed; the next run tries again")
    return "\n".join(lines)


def unified_diff(found: Installation, wish: Wish, texts: Texts) -> bytes:
    """What a wish makes of the published files, as one diff that ``git apply`` and ``patch -p1`` read."""
    there = [goal.on_disk for goal in goals(found, wish) if goal.rung != PRISTINE]
    return b"".join(line for status in there for line in _diff_of(status, texts[status.chain.path]))


def _diff_of(status: ChainStatus, after: bytes | None) -> Iterable[bytes]:
    import difflib  # for one verb alone

    path = str(status.chain.path).encode()
    before = status.chain.text_on(PRISTINE, status.text, status.rung or PRISTINE)
    old_name = b"/dev/null" if before is None else b"a/" + path
    return difflib.diff_bytes(
        difflib.unified_diff, split_lines(before or b""), split_lines(after or b""), old_name, b"b/" + path
    )


def sets(found: Installation) -> str:
    """Every set of the release: its state, and what to know before choosing it."""
    import textwrap  # for one verb alone

    lines: list[str] = []
    for status in found.sets:
        lines.append(f"  {status.name:<10} {word(status)}: {status.patch_set.title}")
        about = status.patch_set.about
        for label, text in vars(about).items() if about else ():
            indent = " " * 24
            head = f"{'':<13}{label:<11}"
            lines += textwrap.wrap(text, 110, initial_indent=head, subsequent_indent=indent)
        lines.append("")
    return "\n".join(lines[:-1])


# --- for programs -----------------------------------------------------------------


def status_json(found: Installation) -> dict[str, Any]:
    """Of the base; with the opt-in sets that are there, where there are any."""
    is_partial = found.state is SetState.PARTIAL
    return {
        "set": found.release.id,
        "manifest_sha256": found.base.patch_set.sha256,
        "state": found.state.value,
        "packages": [
            {
                "name": package.name,
                "version": location.version,
                "folder": str(location.folder),
                "other_copies": [str(other) for other in location.others],
            }
            for package in found.release.packages
            for location in [found.target.locations[package.import_name]]
        ],
        "files": [_file_json(file) for file in found.base.files],
        "symptoms": [symptom.text for symptom in found.symptoms] if is_partial else [],
    } | ({"opt_in_sets": [_set_json(status) for status in found.begun]} if found.begun else {})


def _set_json(status: SetStatus) -> dict[str, Any]:
    return {
        "set": status.name,
        "manifest_sha256": status.patch_set.sha256,
        "state": word(status),
        "files": [_file_json(file) for file in status.files],
    }


def _file_json(file: FileStatus) -> dict[str, Any]:
    return {
        "path": str(file.file.path),
        "location": str(file.path),
        "state": word(file),
        "mounted": file.mounted,
        "sha256": file.found,
        "pristine_sha256": file.on_disk.chain.digest(PRISTINE),
        "applied_sha256": file.file.after,
    } | ({"set_on_it": _set_on(file)} if _set_on(file) else {})


def sets_json(found: Installation) -> dict[str, Any]:
    return {
        "release": found.release.id,
        "releases": list(found.release.catalogue.ids),
        "sets": [
            {"set": s.name, "title": s.patch_set.title, "state": word(s)}
            | (vars(s.patch_set.about) if s.patch_set.about else {})
            for s in found.sets
        ],
    }


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    return status_json(outcome.after) | {
        "changed": [str(change.name) for change in outcome.changes],
        "leftovers": [str(path) for path in outcome.leftovers],
    }


def overlay_json(found: Installation, built: tuple[Built, ...]) -> dict[str, Any]:
    return status_json(found) | {
        "overlay": [
            {"file": str(item.file), "container_path": str(item.container_path), "option": item.mount_option}
            for item in built
        ]
    }


def error_json(error: KitError, next_step: str) -> dict[str, Any]:
    names = {
        ExitCode.REFUSED: "refused",
        ExitCode.PUT_BACK: "put back",
        ExitCode.NOT_PUT_BACK: "not put back",
    }
    return {
        "outcome": names[error.exit_code],
        "message": str(error),
        "next": next_step,
        "left_changed": list(error.left_changed) if isinstance(error, NotPutBack) else [],
    }
