# SPDX-License-Identifier: Apache-2.0
"""What a person reads, and what ``--json`` gives to a program. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from .errors import ExitCode, KitError, NotPutBack
from .overlay import Built
from .state import (
    FileState,
    FileStatus,
    SetState,
    SetStatus,
    applied_text,
    explain_drift,
    pristine_text,
    short,
)
from .transaction import Outcome
from .unified_diff import split_lines
from .verify import Check, Level, Result, Verification

_LEVEL_TITLES = {
    Level.BYTES: "the bytes on the disk",
    Level.NAMES: "compiled, every name looked up, nothing run",
    Level.IMPORTS: "imported in a fresh interpreter of the target",
}
_MARKS = {Result.PASSED: "ok", Result.FAILED: "FAILED", Result.NOT_RUN: "not run"}


def heading(status: SetStatus) -> str:
    """The set, and the packages it is for: name, version, folder."""
    lines = [status.manifest.title, ""]
    for package in status.manifest.packages:
        location = status.target.locations[package.import_name]
        lines.append(f"  {package.name:<12} {location.version or 'version unknown':<16} {location.folder}")
        for other in location.others:
            lines.append(f"  {'':<12} {'not imported':<16} {other} (a second copy; the kit leaves it alone)")
    return "\n".join(lines)


def files(status: SetStatus) -> str:
    """One line a file: state, name, and the hash that was found."""
    lines = []
    for found in status.files:
        note = ", mounted" if found.mounted else ""
        lines.append(f"  {found.state.value + note:<17} {found.file.path!s:<41} {short(found.found)}")
        if found.state in {FileState.DRIFTED, FileState.MISSING}:
            expected = f"{short(found.file.before)} (pristine) or {short(found.file.after)} (applied)"
            lines.append(f"  {'':<17} expected {expected}")
            lines.append(f"  {'':<17} {explain_drift(found).text}")
    return "\n".join(lines)


def summary(status: SetStatus) -> str:
    """One sentence on the whole set, and for a half-patched one what a user would see."""
    total = len(status.files)
    applied = len(status.in_state(FileState.APPLIED))
    match status.state:
        case SetState.NATIVE:
            first = status.manifest.packages[0]
            return (
                f"native: not needed from {first.name} {first.native_from} on, which has the model by itself."
            )
        case SetState.UNSUPPORTED:
            wanted = " and ".join(f"{p.name} {' or '.join(p.supported)}" for p in status.manifest.packages)
            return f"unsupported: this set is for {wanted}."
        case SetState.DRIFTED:
            bad = status.in_state(FileState.DRIFTED, FileState.MISSING)
            return f"drifted: {len(bad)} of {total} files {_are(bad)} neither pristine nor applied."
        case SetState.APPLIED:
            return f"applied: {applied} of {total} files."
        case SetState.PRISTINE:
            return f"pristine: none of the {total} files is applied."
        case SetState.PARTIAL:
            names = ", ".join(str(found.file.path) for found in status.in_state(FileState.PRISTINE))
            verb = _are(status.in_state(FileState.APPLIED))
            return f"partial: {applied} of {total} files {verb} applied; not applied: {names}."


def _are(things: Sized) -> str:
    return "is" if len(things) == 1 else "are"


def symptoms(status: SetStatus) -> str:
    """What serving the model on this installation would look like; empty where all is well."""
    if status.state is not SetState.PARTIAL:
        return ""
    lines = [f"  - {symptom.text}" for symptom in status.symptoms]
    return "\n".join(["As it is, Step-3.7-Flash would show:", *lines])


def changed(outcome: Outcome) -> str:
    """One line for each file that was written, from which content to which."""
    found = {status.path: status for status in outcome.before.files}
    after = {status.path: status for status in outcome.after.files}
    lines = []
    for change in outcome.changes:
        verb = "removed" if change.after is None else "created" if change.before is None else "replaced"
        hashes = f"{short(found[change.path].found)} -> {short(after[change.path].found)}"
        lines.append(f"  {verb:<9} {change.name!s:<41} {hashes}")
    for path in outcome.leftovers:
        lines.append(f"  warning   the temporary file {path} could not be removed; the next run tries again")
    return "\n".join(lines)


def checks(verification: Verification) -> str:
    """All checks, grouped by what kind of proof they are."""
    lines: list[str] = []
    for level in Level:
        of_level = [check for check in verification.checks if check.level is level]
        if of_level:
            lines += ["", f"{_LEVEL_TITLES[level]}:"]
            lines += [f"  {_MARKS[c.result]:<8} {c.subject:<41} {c.detail}" for c in of_level]
    return "\n".join(lines[1:])


def verdict(verification: Verification) -> str:
    """The last line of ``verify``: what was proved, and what was not looked at."""
    status = verification.status
    if status.state is SetState.NATIVE:
        return summary(status)
    count = {result: sum(c.result is result for c in verification.checks) for result in Result}
    not_run = f", {count[Result.NOT_RUN]} not run" if count[Result.NOT_RUN] else ""
    if verification.passed:
        return f"verified: {count[Result.PASSED]} checks passed{not_run}."
    failed = "1 check" if count[Result.FAILED] == 1 else f"{count[Result.FAILED]} checks"
    return f"NOT verified: {failed} failed{not_run}. {summary(status)}"


def unified_diff(status: SetStatus) -> bytes:
    """The set as one diff, pristine to applied, that ``git apply`` and ``patch -p1`` read."""
    return b"".join(line for found in status.files for line in _diff_of(found))


def _diff_of(found: FileStatus) -> Iterable[bytes]:
    import difflib  # for one verb alone

    path = str(found.file.path).encode()
    before = pristine_text(found)
    old_name = b"/dev/null" if before is None else b"a/" + path
    return difflib.diff_bytes(
        difflib.unified_diff,
        split_lines(before or b""),
        split_lines(applied_text(found)),
        old_name,
        b"b/" + path,
    )


# --- for programs -----------------------------------------------------------------


def status_json(status: SetStatus) -> dict[str, Any]:
    return {
        "set": status.manifest.id,
        "manifest_sha256": status.manifest.sha256,
        "state": status.state.value,
        "packages": [
            {
                "name": package.name,
                "version": location.version,
                "folder": str(location.folder),
                "other_copies": [str(other) for other in location.others],
            }
            for package in status.manifest.packages
            for location in [status.target.locations[package.import_name]]
        ],
        "files": [
            {
                "path": str(found.file.path),
                "location": str(found.path),
                "state": found.state.value,
                "mounted": found.mounted,
                "sha256": found.found,
                "pristine_sha256": found.file.before,
                "applied_sha256": found.file.after,
            }
            for found in status.files
        ],
        "symptoms": [symptom.text for symptom in status.symptoms] if status.state is SetState.PARTIAL else [],
    }


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    return status_json(outcome.after) | {
        "changed": [str(change.name) for change in outcome.changes],
        "leftovers": [str(path) for path in outcome.leftovers],
    }


def verification_json(verification: Verification) -> dict[str, Any]:
    def row(check: Check) -> dict[str, str]:
        return {
            "level": check.level.value,
            "subject": check.subject,
            "result": check.result.value,
            "detail": check.detail,
        }

    return status_json(verification.status) | {
        "passed": verification.passed,
        "checks": [row(check) for check in verification.checks],
    }


def overlay_json(status: SetStatus, built: tuple[Built, ...]) -> dict[str, Any]:
    return status_json(status) | {
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
