# SPDX-License-Identifier: Apache-2.0
"""The verb of the proof on the real machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from patchkit.errors import ExitCode, Refused

from .request import VERSION, Answer, Request, Verb, bundle, target_arguments

if TYPE_CHECKING:
    from serving.accept.run import Request as Wanted

_ENVIRONMENT_IS_SET = "STEP3P7_ENVIRONMENT_IS_SET"


def _accept(request: Request) -> Answer:
    from serving.accept import run
    from serving.machine.host import Host

    options = request.options
    if options.list:
        return Answer(run.list_text(options.chinese), run.list_json())
    wanted = _wanted(request)
    _enter_environment()
    found = run.run(wanted, Host(), request.release, request.target, request.typed)
    code = ExitCode.NO if found.failed else ExitCode.OK
    return Answer(run.text(found, options.chinese), run.as_json(found), code)


def _wanted(request: Request) -> Wanted:
    from serving.accept import run
    from serving.accept.phase import Level, Options
    from serving.start import profiles

    options = request.options
    if options.model is None or options.out is None:
        absent = "the model folder" if options.model is None else "--out DIR"
        raise Refused(f"{absent} is not given", "{kit} accept MODEL --out DIR")
    return run.Request(
        model=options.model,
        out=options.out,
        options=Options(
            profile=profiles.load(options.profile),
            level=Level(options.level),
            data=options.data,
            arguments=tuple(options.arguments),
            start_limit_s=options.start_limit,
            chinese=options.chinese,
        ),
        kit_version=VERSION,
        only=tuple(options.only),
        skip=tuple(options.skip),
        start=options.start,
        again=tuple(options.again),
        go_on=options.go_on,
    )


def _enter_environment() -> None:
    """Once through the image's entry point, as serve.sh does: the driver's libraries, CANN, jemalloc.

    Nothing of it is left to ~/.bashrc, and what is looked at here sees what the servers will see.
    """
    folder = bundle()
    if _ENVIRONMENT_IS_SET in os.environ or not isinstance(folder, Path):
        return
    entry = folder / "docker" / "entrypoint.sh"
    if entry.is_file():
        os.environ[_ENVIRONMENT_IS_SET] = "1"
        os.execv(entry, [str(entry), sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell is wanted


def _accept_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "model", type=Path, nargs="?", metavar="MODEL", help="the model folder that vllm serve would be given"
    )
    verb.add_argument(
        "arguments", nargs="*", metavar="FLAG", help="after -- MODEL: what every vllm serve is given, too"
    )
    verb.add_argument(
        "--out", type=Path, metavar="DIR", help="the record; a run that was stopped goes on there"
    )
    verb.add_argument("--list", action="store_true", help="the phases, and what each takes and proves")
    verb.add_argument(
        "--level",
        choices=("quick", "medium", "long"),
        default="medium",
        help="minutes, an evening, a night (default: medium)",
    )
    for name, what in (
        ("only", "this phase, whatever the level"),
        ("skip", "leave this phase out"),
        ("again", "forget what is recorded of this phase first"),
    ):
        verb.add_argument(
            f"--{name}", action="append", default=[], metavar="PHASE", help=f"{what}; may be repeated"
        )
    verb.add_argument("--from", dest="start", default="", metavar="PHASE", help="begin with this phase")
    verb.add_argument("--go-on", action="store_true", help="also where what should pass first has failed")
    verb.add_argument("--profile", default="bf16-tp8", metavar="NAME", help="or a file (default: bf16-tp8)")
    verb.add_argument(
        "--data", type=Path, metavar="DIR", help="question files of your own, for the phase quality"
    )
    verb.add_argument(
        "--start-limit",
        type=float,
        default=3600.0,
        metavar="S",
        help="until a server is healthy (default: 3600)",
    )
    verb.add_argument("--chinese", action="store_true", help="titles and the report in Chinese")


VERBS = {
    "accept": Verb(
        "prove it on this machine, phase by phase, into a folder with a verdict",
        _accept,
        (target_arguments, _accept_arguments),
    ),
}
