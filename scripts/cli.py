# SPDX-License-Identifier: Apache-2.0
"""The command line of ``kit``: arguments in, one report out, an exit code that can be relied on."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from types import FrameType
from typing import Any

import commands
from commands.command_line import build_parser
from commands.request import Answer, Request
from patchkit.errors import ExitCode, KitError, PutBack, Refused


def main(arguments: Sequence[str], kit: str) -> int:
    """Run one command. ``kit`` is what the user types for this program.

    Returns:
        The exit code; what was found or done is printed.
    """
    _be_printable()
    again = shlex.join([*shlex.split(kit), *arguments])
    asked = [word for word in arguments[:1] if word in commands.NAMES]
    help_text = io.StringIO()
    try:
        with redirect_stdout(help_text):  # argparse would not say that it could not write it
            options = build_parser(kit, asked or commands.NAMES).parse_args(arguments)
    except SystemExit as end:
        code = ExitCode.USAGE if end.code else ExitCode.OK
        return _written(lambda: print(help_text.getvalue(), end=""), code, again)
    _stop_cleanly_on_signals()
    try:
        answer = _run(options, kit)
    except KitError as failure:
        error = failure  # the name in the except clause does not outlive it
        next_step = error.next_step.replace("{kit}", kit).replace("{again}", again)
        return _written(lambda: _tell_error(error, next_step, options), error.exit_code, again)
    return _written(lambda: _tell(answer, options), answer.exit_code, again)


def _written(tell: Callable[[], None], code: ExitCode, again: str) -> ExitCode:
    """Print, and give the exit code: what was done is done, whether or not that can be read.

    Where nobody can have read of a success, the code says so; a failure is told by its own.
    """
    try:
        tell()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # kit status | head is no fault
        _give_up_on_output()
        return code
    except OSError as error:
        with suppress(OSError):
            sys.stderr.write(
                f"kit: the answer could not be written ({error.strerror}); what was done stays done.\n"
                f"Next: {again}    # when the cause is gone\n"
            )
        _give_up_on_output()
        return ExitCode.UNWRITTEN if code is ExitCode.OK else code


def _tell(answer: Answer, options: argparse.Namespace) -> None:
    if options.json:
        _print_json(answer.exit_code, {"verb": options.verb}, answer.data)
        return
    sys.stdout.buffer.write(answer.raw)
    print(answer.text, end="\n" if answer.text else "")
    if answer.next_step:
        print(f"\nNext: {answer.next_step}")


def _tell_error(error: KitError, next_step: str, options: argparse.Namespace) -> None:
    if options.json:
        from patchkit import report

        _print_json(error.exit_code, {}, report.error_json(error, next_step))
    else:
        print(f"kit: {error}\nNext: {next_step}", file=sys.stderr)


def _print_json(code: ExitCode, head: dict[str, Any], data: dict[str, Any]) -> None:
    import json

    print(json.dumps(head | {"exit_code": code} | data, indent=2))


def _run(options: argparse.Namespace, kit: str) -> Answer:
    """The verb, with whatever else may go wrong turned into an error of ours."""
    request = Request(options, kit)
    try:
        return commands.load(options.verb).run(request)
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
    from patchkit import plan, report, state
    from patchkit.state import SetState

    wish_for = {"apply": plan.to_apply, "revert": plan.to_revert}.get(request.options.verb)
    if wish_for is not None:
        found = state.inspect(request.release, request.target)
        goals = plan.goals(found, wish_for(found, request.options.sets))
        if found.state is not SetState.UNSUPPORTED and all(goal.reached for goal in goals):
            sentence = f"interrupted by {signal_name}, when nothing was left to do. {report.summary(found)}"
            return Answer(sentence, report.status_json(found))
    raise PutBack(f"interrupted by {signal_name}", "{again}")


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
