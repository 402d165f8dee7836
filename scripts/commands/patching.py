# SPDX-License-Identifier: Apache-2.0
"""The verbs of the patch set itself."""

from __future__ import annotations

import argparse
from pathlib import Path

from patchkit import overlay, report, state, transaction, verify
from patchkit.errors import ExitCode, Refused
from patchkit.state import FileState, SetState, SetStatus
from patchkit.verify import Level

from .request import Answer, Request, Verb, paragraphs, target_arguments


def _status(request: Request) -> Answer:
    found = state.inspect(request.manifest, request.target)
    parts = [report.heading(found), report.files(found), report.summary(found), report.symptoms(found)]
    done = found.state in {SetState.APPLIED, SetState.NATIVE}
    return Answer(
        text=paragraphs(parts),
        data=report.status_json(found),
        exit_code=ExitCode.OK if done else ExitCode.NO,
        next_step=_advice(request, found),
    )


def _advice(request: Request, found: SetStatus) -> str:
    """The command that helps on from a state; the cure that ``apply`` would name, where it would refuse."""
    if found.state is SetState.NATIVE:
        return ""
    if found.state is SetState.APPLIED:
        return request.command("verify")
    try:
        transaction.require_changeable(found, FileState.APPLIED)
    except Refused as refusal:
        return refusal.next_step
    return request.command("apply")


def _apply(request: Request) -> Answer:
    outcome = transaction.apply(request.manifest, request.target)
    total = len(outcome.after.files)
    if outcome.before.state is SetState.NATIVE:
        sentence, next_step = report.summary(outcome.after) + " Nothing was changed.", ""
    elif outcome.changes:
        written = f"{len(outcome.changes)} of {total} files written, each read back and hashed"
        sentence = (
            f"applied: {written}."
            if len(outcome.changes) == total
            else f"applied: {written}; the others were there already."
        )
        next_step = request.command("verify")
    else:
        sentence = f"already applied: all {total} files have the expected hashes. Nothing was changed."
        next_step = request.command("verify")
    return _of_outcome(outcome, sentence, next_step)


def _revert(request: Request) -> Answer:
    outcome = transaction.revert(request.manifest, request.target)
    total = len(outcome.after.files)
    if outcome.before.state is SetState.NATIVE:
        sentence = report.summary(outcome.after) + " Nothing was changed."
    elif outcome.changes:
        undone = f"reverted: {len(outcome.changes)} of {total} files are again as upstream published them"
        sentence = f"{undone}." if len(outcome.changes) == total else f"{undone}; the others were so already."
    else:
        sentence = f"already pristine: none of the {total} files was applied. Nothing was changed."
    return _of_outcome(outcome, sentence, "")


def _of_outcome(outcome: transaction.Outcome, sentence: str, next_step: str) -> Answer:
    parts = [report.heading(outcome.after), report.changed(outcome), sentence]
    return Answer(paragraphs(parts), report.outcome_json(outcome), next_step=next_step)


def _verify(request: Request) -> Answer:
    levels = frozenset({Level.BYTES}) if request.options.fast else frozenset(Level)
    result = verify.verify(request.manifest, request.target, levels)
    parts = [
        report.heading(result.status),
        report.checks(result),
        report.verdict(result),
        report.symptoms(result.status),
    ]
    return Answer(
        text=paragraphs(parts),
        data=report.verification_json(result),
        exit_code=ExitCode.OK if result.passed else ExitCode.NO,
        next_step="" if result.passed else _advice(request, result.status),
    )


def _diff(request: Request) -> Answer:
    found = state.inspect(request.manifest, request.target)
    if found.state is SetState.NATIVE:
        return Answer(report.summary(found), report.status_json(found))
    transaction.require_changeable(found, FileState.APPLIED)
    diff = report.unified_diff(found)
    data = report.status_json(found) | {"diff": diff.decode("utf-8", "backslashreplace")}
    return Answer("", data, raw=diff)


def _overlay(request: Request) -> Answer:
    found = state.inspect(request.manifest, request.target)
    if found.state is SetState.NATIVE:
        return Answer(report.summary(found), report.status_json(found))
    folder = request.options.out or Path("build", "overlay", request.manifest.id)
    built = overlay.build(found, folder)
    mounts = " \\\n".join(f"  {item.mount_option}" for item in built)
    sentence = f"built: {len(built)} files in {folder}. Mount them over an untouched container, read-only:"
    return Answer(f"{sentence}\n\n{mounts}", report.overlay_json(found, built))


def _verify_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--fast", action="store_true", help="the bytes alone")


def _overlay_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--out", type=Path, metavar="DIR", help="where to (default: build/overlay/<set>)")


VERBS = {
    "status": Verb(
        "what is installed: pristine, applied, partial, drifted, unsupported or native",
        _status,
        (target_arguments,),
    ),
    "apply": Verb("install the set: all of its files, or none", _apply, (target_arguments,)),
    "verify": Verb(
        "prove it: the bytes, every name, then an import in a fresh interpreter",
        _verify,
        (target_arguments, _verify_arguments),
    ),
    "diff": Verb(
        "print the whole set as one unified diff, from pristine to applied", _diff, (target_arguments,)
    ),
    "revert": Verb("undo the set: all of its files, or none", _revert, (target_arguments,)),
    "overlay": Verb(
        "build the full files, to be mounted over an untouched container",
        _overlay,
        (target_arguments, _overlay_arguments),
    ),
}
