# SPDX-License-Identifier: Apache-2.0
"""The command line of ``kit``: arguments in, one report out, an exit code that can be relied on."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from commands import asking, patching, starting
from commands.request import VERSION, Answer, Request
from patchkit import plan, report, state
from patchkit.errors import KitError, PutBack, Refused
from patchkit.state import SetState

VERBS = patching.VERBS | starting.VERBS | asking.VERBS

_EPILOG = """\
exit codes:
  0  done, or already so
  1  the answer is no: not wholly applied (status, verify), a problem found (doctor,
     check-model), it does not fit (plan), not known (explain)
  2  the command line was not understood
  3  refused before the first write; nothing was changed
  4  failed on the way; every file is again as it was
  5  failed on the way; at least one file could not be put back
"""


def build_parser(prog: str) -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="A checked patch set that lets vllm-ascend v0.20.2rc1 serve Step-3.7-Flash.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kit {VERSION}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        subparser = verbs.add_parser(name, help=verb.summary, description=verb.summary)
        subparser.add_argument("--json", action="store_true", help="one JSON object instead of text")
        for add in verb.add_options:
            add(subparser)
    return parser


def main(arguments: Sequence[str], kit: str) -> int:
    """Run one command. ``kit`` is what the user types for this program.

    Returns:
        The exit code; what was found or done is printed.
    """
    _be_printable()
    options = build_parser(kit).parse_args(arguments)
    again = shlex.join([*shlex.split(kit), *arguments])
    _stop_cleanly_on_signals()
    try:
        answer = _run(options, kit)
    except KitError as error:
        next_step = error.next_step.replace("{kit}", kit).replace("{again}", again)
        return _fail(error, next_step, options.json)
    _tell(answer, options)
    return answer.exit_code


def _tell(answer: Answer, options: argparse.Namespace) -> None:
    """Print the answer. What was done is done, and the exit code says so, whether or not that can be read."""
    try:
        if options.json:
            print(json.dumps({"verb": options.verb, "exit_code": answer.exit_code} | answer.data, indent=2))
        else:
            sys.stdout.buffer.write(answer.raw)
            print(answer.text, end="\n" if answer.text else "")
            print(
                f"\nNext: {answer.next_step}" if answer.next_step else "",
                end="\n" if answer.next_step else "",
            )
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # kit status | head is no fault
            print(f"kit: the answer could not be written ({error.strerror})", file=sys.stderr)
        _give_up_on_output()


def _run(options: argparse.Namespace, kit: str) -> Answer:
    """The verb, with whatever else may go wrong turned into an error of ours."""
    request = Request(options, kit)
    try:
        return VERBS[options.verb].run(request)
    except _Interrupted as interruption:
        if isinstance(interruption.__context__, KitError):
            raise interruption.__context__ from None  # it came while the run was already failing
        return _interrupted(request, str(interruption))
    except OSError as error:
        # Every failure while files are being replaced is handled where it happens.
        raise Refused(
            f"{error.filename or 'a file'} failed ({error.strerror})", "{again}    # when the cause is gone"
        ) from error
    finally:
        _pass_over_signals()  # what is left is to print the answer


def _interrupted(request: Request, signal_name: str) -> Answer:
    """What a signal left: nothing, or the whole job where it came a moment too late. The disk tells."""
    wish_for = {"apply": plan.to_apply, "revert": plan.to_revert}.get(request.options.verb)
    if wish_for is not None:
        found = state.inspect(request.release, request.target)
        goals = plan.goals(found, wish_for(found, request.options.sets))
        if found.state is not SetState.UNSUPPORTED and all(goal.reached for goal in goals):
            sentence = f"interrupted by {signal_name}, when nothing was left to do. {report.summary(found)}"
            return Answer(sentence, report.status_json(found))
    raise PutBack(f"interrupted by {signal_name}", "{again}")


def _fail(error: KitError, next_step: str, as_json: bool) -> int:
    try:
        if as_json:
            print(json.dumps({"exit_code": error.exit_code} | report.error_json(error, next_step), indent=2))
        else:
            print(f"kit: {error}\nNext: {next_step}", file=sys.stderr)
        sys.stdout.flush()
    except OSError:
        _give_up_on_output()
    return error.exit_code


def _give_up_on_output() -> None:
    """The reader is gone, or the disk behind it is full: Python must not stumble over that at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interrupted(BaseException):
    """A signal that asks to stop; not an Exception, so that nothing takes it for a fault."""


def _stop_cleanly_on_signals() -> None:
    for number in _STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _interrupt)


def _pass_over_signals() -> None:
    # Not SIG_IGN: Python complains of a signal that came a moment before it was ignored.
    for number in _STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _pass_over)


def _pass_over(_number: int, _frame: FrameType | None) -> None:
    """One is enough: a second must not break into the tidying up, nor into the answer."""


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if signal.getsignal(number) is _pass_over:
        return  # it came together with another one
    _pass_over_signals()
    raise _Interrupted(signal.Signals(number).name)


def _be_printable() -> None:
    """Print any path in any locale, and into a closed stream too, rather than die of it."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123 - for the rest of the run
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
