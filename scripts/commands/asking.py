# SPDX-License-Identifier: Apache-2.0
"""The verbs that ask a running server, or look at what one gave."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

from patchkit.errors import ExitCode, KitError, Refused

from .request import VERSION, Answer, Request, Verb, target_arguments


def _smoke(request: Request) -> Answer:
    import os

    from serving.client import smoke
    from serving.client.questions import Options

    options = request.options
    found = smoke.run(
        options.url,
        Options(
            model=options.model,
            key=options.api_key or os.environ.get("VLLM_API_KEY", ""),
            folder=options.folder,
            timeout=options.timeout,
            wait=options.wait,
            max_tokens=options.max_tokens,
            quality=options.quality,
        ),
    )
    code = ExitCode.NO if found.failed else ExitCode.OK
    return Answer(smoke.text(found, request.typed), smoke.as_json(found, request.typed), code)


def _bench(request: Request) -> Answer:
    from serving.machine.host import Host
    from serving.measure import bench, bench_server
    from serving.measure.bench_figures import GUIDE

    options, host = request.options, Host()
    rows = tuple(dict.fromkeys(options.rows)) if options.rows else tuple(GUIDE)
    wanted = bench.BenchRequest(
        url=options.url,
        out=options.out,
        rows=rows,
        rounds=options.rounds,
        cards=options.cards,
        served_model_name=options.served_model_name,
        tokenizer=options.tokenizer,
        key=bench_server.key_of(host.environment),
        timeout_s=options.timeout,
    )
    found = bench.run(wanted, _about(request), host)
    code = ExitCode.OK if found.complete else ExitCode.NO
    done = any(outcome.measurement for outcome in found.outcomes)
    next_step = f"{request.kit} report {shlex.quote(str(options.out))}" if done else ""
    return Answer(bench.text(found), bench.as_json(found), code, next_step)


def _about(request: Request) -> dict[str, str]:
    """What measured: this kit, the set and its state, the packages; less where there is no target here."""
    from patchkit import state

    found = {"kit": VERSION}
    try:
        status = state.inspect(request.release, request.target)
    except KitError as error:
        return found | {"set": f"not looked at: {error.what}"}
    packages = {
        package.name: request.target.locations[package.import_name].version or "?"
        for package in request.release.packages
    }
    opt_ins = {f"set {s.name}": s.state.value for s in status.begun}
    return found | {"set": f"{request.release.id}, {status.state.value}"} | opt_ins | packages


def _report(request: Request) -> Answer:
    from serving.measure import bench_picture, bench_report, bench_results
    from serving.model import checkpoint

    options = request.options
    first = bench_results.load_finished(options.results)
    second = bench_results.load_finished(options.second) if options.second else None
    folder = options.model or bench_report.model_folder(first)
    chip = options.chip or bench_report.chip(first)
    ceilings = bench_report.ceilings(checkpoint.load_config(folder), first, chip) if folder and chip else {}
    found = bench_report.Report(first, second, ceilings)
    text, data = bench_report.markdown(found), bench_report.as_json(found)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
        text = f"written: {options.out}"
    try:
        for picture in options.picture:
            bench_picture.draw(found, picture, options.python)
    except Refused as error:  # the Markdown is there all the same
        next_step = error.next_step.replace("{again}", "name another")
        return Answer(f"{text}\n\nno picture: {error.what}.", data, ExitCode.NO, next_step)
    written = "".join(f"\nwritten: {picture}" for picture in options.picture) if options.out else ""
    return Answer(text + written, data)


def _smoke_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--url", default="http://127.0.0.1:8000", metavar="URL", help="default: http://127.0.0.1:8000"
    )
    verb.add_argument("--model", default="", metavar="NAME", help="default: the first that is served")
    verb.add_argument("--api-key", default="", metavar="KEY", help="default: the variable VLLM_API_KEY")
    verb.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="the model folder, for its vocabulary (default: the server's)",
    )
    verb.add_argument(
        "--timeout", type=_seconds, default=120.0, metavar="S", help="of one answer (default: 120)"
    )
    verb.add_argument(
        "--wait", type=_seconds, default=0.0, metavar="S", help="until it is healthy (default: 0)"
    )
    verb.add_argument(
        "--max-tokens", type=_tokens, default=1024, metavar="N", help="of one answer (default: 1024)"
    )
    verb.add_argument(
        "--quality", action="store_true", help="what a real checkpoint alone can answer, as well"
    )


def _seconds(text: str) -> float:
    found = float(text) if re.fullmatch(r"[0-9.]+", text) and text.count(".") < 2 else -1.0
    if not 0 <= found <= 86400:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to 86400, got {text!r}")
    return found


def _tokens(text: str) -> int:
    found = int(text) if text.isdecimal() else 0
    if not 1 <= found <= 262144:
        raise argparse.ArgumentTypeError(f"expected 1 to 262144, got {text!r}")
    return found


def _row(text: str) -> Any:
    from serving.measure.bench_figures import parse_row

    try:
        return parse_row(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _bench_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    verb.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="results; a run that was stopped goes on there"
    )
    verb.add_argument(
        "--rows",
        type=_row,
        nargs="+",
        metavar="ROW",
        help="a length, for the guide's row of it, or INPUT:OUTPUT:CONCURRENCY (default: the eight)",
    )
    verb.add_argument(
        "--rounds", type=int, default=4, metavar="N", help="requests = concurrency x N (default: 4)"
    )
    verb.add_argument(
        "--cards", type=int, default=8, metavar="N", help="cards that the server runs on (default: 8)"
    )
    verb.add_argument("--served-model-name", metavar="NAME", help="default: the first that the server names")
    verb.add_argument("--tokenizer", type=Path, metavar="DIR", help="default: the server's model folder")
    verb.add_argument("--timeout", type=float, default=7200, metavar="S", help="for one row (default: 7200)")


def _report_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=Path, metavar="RESULTS", help="the folder of kit bench --out")
    verb.add_argument("second", type=Path, nargs="?", metavar="RESULTS2", help="another, to compare with")
    verb.add_argument(
        "--model", type=Path, metavar="DIR", help="model folder, for the ceiling (default: the server's)"
    )
    verb.add_argument("--chip", help="for the ceiling (default: the one that npu-smi showed)")
    verb.add_argument("--out", type=Path, metavar="FILE", help="write the Markdown there")
    verb.add_argument(
        "--picture",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="draw a .png or .svg; may be repeated",
    )
    verb.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="a Python with matplotlib, for --picture (default: python3)",
    )


VERBS = {
    "bench": Verb(
        "measure a running server with the guide's eight rows, or others",
        _bench,
        (target_arguments, _bench_arguments),
    ),
    "report": Verb(
        "a benchmark beside the guide's table and the roofline, or beside another",
        _report,
        (_report_arguments,),
    ),
    "smoke": Verb(
        "ask a running server what its users would, and tell the faults of its answers apart",
        _smoke,
        (_smoke_arguments,),
    ),
}
