# SPDX-License-Identifier: Apache-2.0
"""The verbs of the patch sets themselves."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from patchkit import plan, report, state
from patchkit.errors import ExitCode, Refused
from patchkit.manifest import BASE
from patchkit.state import Installation, SetState

from .request import Answer, Request, Verb, paragraphs, target_arguments

if TYPE_CHECKING:
    from patchkit.transaction import Outcome


def _status(request: Request) -> Answer:
    found = state.inspect(request.release, request.target)
    listed = [] if found.state is SetState.NATIVE else [report.files(found)]
    parts = [report.heading(found), *listed, report.summary(found), report.symptoms(found)]
    done = found.state in {SetState.APPLIED, SetState.NATIVE}
    return Answer(
        text=paragraphs(parts),
        data=report.status_json(found),
        exit_code=ExitCode.OK if done else ExitCode.NO,
        next_step=_advice(request, found),
    )


def _advice(request: Request, found: Installation, names: Sequence[str] = ()) -> str:
    """The command that helps on from a state; the cure that ``apply`` would name, where it would refuse."""
    if found.state is SetState.NATIVE:
        return ""
    wish = plan.to_apply(found, names)
    if found.state is SetState.APPLIED and wish.wanted <= found.applied:
        return request.command("verify")
    try:
        plan.require(found, wish)
    except Refused as refusal:
        return refusal.next_step
    return request.command("apply", *names)


def _apply(request: Request) -> Answer:
    from patchkit import transaction

    outcome = transaction.apply(request.release, request.target, request.options.sets)
    if outcome.before.state is SetState.NATIVE:
        return _of_outcome(outcome, report.summary(outcome.after) + " Nothing was changed.", "")
    total = len(plan.goals(outcome.after, outcome.wish))
    if outcome.changes:
        written = f"{len(outcome.changes)} of {total} files written, each read back and hashed"
        sentence = (
            f"applied: {written}."
            if len(outcome.changes) == total
            else f"applied: {written}; the others were there already."
        )
    else:
        sentence = f"already applied: all {total} files have the expected hashes. Nothing was changed."
    return _of_outcome(outcome, sentence, request.command("verify"))


def _revert(request: Request) -> Answer:
    from patchkit import transaction

    outcome = transaction.revert(request.release, request.target, request.options.sets)
    if outcome.before.state is SetState.NATIVE:
        return _of_outcome(outcome, report.summary(outcome.after) + " Nothing was changed.", "")
    return _of_outcome(outcome, _reverted(outcome) if outcome.wish.wanted else _all_reverted(outcome), "")


def _all_reverted(outcome: Outcome) -> str:
    total = len(plan.goals(outcome.after, outcome.wish))
    if not outcome.changes:
        return f"already pristine: none of the {total} files was applied. Nothing was changed."
    undone = f"reverted: {len(outcome.changes)} of {total} files are again as upstream published them"
    return f"{undone}." if len(outcome.changes) == total else f"{undone}; the others were so already."


def _reverted(outcome: Outcome) -> str:
    """Of a revert that leaves something there."""
    gone = ", ".join(sorted(outcome.wish.concerned - outcome.wish.wanted))
    stays = f"there stays {', '.join(sorted(outcome.wish.wanted))}"
    if not outcome.changes:
        return f"already so: {gone} is not applied; {stays}. Nothing was changed."
    return f"reverted {gone}: {len(outcome.changes)} files written, each read back and hashed; {stays}."


def _of_outcome(outcome: Outcome, sentence: str, next_step: str) -> Answer:
    parts = [report.heading(outcome.after), report.changed(outcome), sentence]
    return Answer(paragraphs(parts), report.outcome_json(outcome), next_step=next_step)


def _verify(request: Request) -> Answer:
    from patchkit import verification_report, verify
    from patchkit.verify import Level

    levels = frozenset({Level.BYTES}) if request.options.fast else frozenset(Level)
    names = request.options.sets
    result = verify.verify(request.release, request.target, levels, names)
    parts = [
        report.heading(result.found),
        verification_report.checks(result),
        verification_report.verdict(result),
        report.symptoms(result.found),
    ]
    return Answer(
        text=paragraphs(parts),
        data=verification_report.verification_json(result),
        exit_code=ExitCode.OK if result.passed else ExitCode.NO,
        next_step="" if result.passed else _advice(request, result.found, names),
    )


def _diff(request: Request) -> Answer:
    found = state.inspect(request.release, request.target)
    if found.state is SetState.NATIVE:
        return Answer(report.summary(found), report.status_json(found))
    wish = plan.to_apply(found, request.options.sets)
    diff = report.unified_diff(found, wish, plan.require(found, wish))
    data = report.status_json(found) | {"diff": diff.decode("utf-8", "backslashreplace")}
    return Answer("", data, raw=diff)


def _overlay(request: Request) -> Answer:
    from patchkit import overlay

    found = state.inspect(request.release, request.target)
    if found.state is SetState.NATIVE:
        return Answer(report.summary(found), report.status_json(found))
    wish = plan.to_apply(found, request.options.sets)
    name = "+".join((request.release.id, *sorted(wish.wanted - {BASE})))
    folder = request.options.out or Path("build", "overlay", name)
    built = overlay.build(found, wish, folder)
    mounts = " \\\n".join(f"  {item.mount_option}" for item in built)
    sentence = f"built: {len(built)} files in {folder}. Mount them over an untouched container, read-only:"
    return Answer(f"{sentence}\n\n{mounts}", report.overlay_json(found, built))


def _sets(request: Request) -> Answer:
    found = state.inspect(request.release, request.target)
    if found.state in {SetState.NATIVE, SetState.UNSUPPORTED}:
        code = ExitCode.OK if found.state is SetState.NATIVE else ExitCode.NO
        return Answer(report.summary(found), report.sets_json(found), code)
    parts = [report.heading(found), report.sets(found)]
    return Answer(paragraphs(parts), report.sets_json(found))


def _verify_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--fast", action="store_true", help="the bytes alone")


def _set_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("sets", nargs="*", metavar="SET", help=f"{BASE}, or an opt-in set (see: kit sets)")


def _overlay_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--out", type=Path, metavar="DIR", help="where to (default: build/overlay/<set>)")


VERBS = {
    "status": Verb(
        "what is installed: pristine, applied, partial, drifted, unsupported or native",
        _status,
        (target_arguments,),
    ),
    "apply": Verb(
        "install the base set, and the named ones on it: all of their files, or none",
        _apply,
        (target_arguments, _set_arguments),
    ),
    "verify": Verb(
        "prove it: the bytes, every name, then an import in a fresh interpreter",
        _verify,
        (target_arguments, _verify_arguments, _set_arguments),
    ),
    "diff": Verb(
        "print the whole set as one unified diff, from pristine to applied",
        _diff,
        (target_arguments, _set_arguments),
    ),
    "revert": Verb(
        "undo the named sets, or all: all of their files, or none",
        _revert,
        (target_arguments, _set_arguments),
    ),
    "overlay": Verb(
        "build the full files, to be mounted over an untouched container",
        _overlay,
        (target_arguments, _overlay_arguments, _set_arguments),
    ),
    "sets": Verb(
        "what there is for this release: what each set does, costs and needs", _sets, (target_arguments,)
    ),
}
