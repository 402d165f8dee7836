# SPDX-License-Identifier: Apache-2.0
"""The command line of ``kit``: arguments in, one report out, an exit code that can be relied on.

Most of what a run costs is imports, so what a few verbs alone need is imported by them.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from patchkit import manifest, overlay, report, state, target, transaction, verify
from patchkit.errors import ExitCode, KitError, PutBack, Refused, TargetNotFound
from patchkit.manifest import Folder, Manifest
from patchkit.state import FileState, SetState, SetStatus
from patchkit.target import Target
from patchkit.verify import Level

VERSION = "0.1.0"

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


@dataclass(frozen=True)
class Answer:
    """What a verb found or did: text for a person, data for a program."""

    text: str
    data: dict[str, Any]
    exit_code: ExitCode = ExitCode.OK
    next_step: str = ""
    raw: bytes = b""
    """Bytes to write in front of the text, where a person did not ask for data (``diff``)."""


@dataclass(frozen=True)
class Request:
    """A verb's view of the command line. ``kit`` is what the user types for this program.

    The manifest and the target are looked up when a verb asks for them: some need neither.
    """

    options: argparse.Namespace
    kit: str

    @cached_property
    def manifest(self) -> Manifest:
        return manifest.load(bundle())

    @cached_property
    def target(self) -> Target:
        if self.options.root:
            return target.in_folder(self.manifest, self.options.root)
        return target.of_interpreter(self.manifest, self.options.python)

    def command(self, verb: str) -> str:
        """The kit's command for another verb on the same target."""
        return " ".join([self.kit, verb, *_target_options(self.options)])


@dataclass(frozen=True)
class Verb:
    """One subcommand: its line in the help, its own options, what it does."""

    summary: str
    run: Callable[[Request], Answer]
    add_options: tuple[Callable[[argparse.ArgumentParser], None], ...] = ()


def _status(request: Request) -> Answer:
    found = state.inspect(request.manifest, request.target)
    parts = [report.heading(found), report.files(found), report.summary(found), report.symptoms(found)]
    done = found.state in {SetState.APPLIED, SetState.NATIVE}
    return Answer(
        text=_paragraphs(parts),
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
        sentence = f"applied: {len(outcome.changes)} of {total} files written, each read back and hashed."
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
        sentence = f"reverted: {len(outcome.changes)} of {total} files are again as upstream published them."
    else:
        sentence = f"already pristine: none of the {total} files was applied. Nothing was changed."
    return _of_outcome(outcome, sentence, "")


def _of_outcome(outcome: transaction.Outcome, sentence: str, next_step: str) -> Answer:
    parts = [report.heading(outcome.after), report.changed(outcome), sentence]
    return Answer(_paragraphs(parts), report.outcome_json(outcome), next_step=next_step)


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
        text=_paragraphs(parts),
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


def _doctor(request: Request) -> Answer:
    from serving.machine import doctor
    from serving.machine.host import Host

    options = request.options
    if options.list:
        rows = doctor.checks()
        text = "\n".join(f"  {name:<24} {summary}" for name, summary in rows)
        return Answer(text, {"checks": [{"name": name, "summary": summary} for name, summary in rows]})
    try:
        found: Target | KitError = request.target
    except TargetNotFound as error:
        found = error  # one finding among others: the machine can be looked at all the same
    examination = doctor.examine(
        Host(),
        request.manifest,
        found,
        frozenset(options.ignore),
        port=options.port,
        model=options.model,
    )
    names = " ".join(_target_options(options))
    return Answer(
        doctor.text(examination, request.kit, names),
        doctor.as_json(examination, request.kit, names),
        ExitCode.NO if examination.failed else ExitCode.OK,
    )


def _check_model(request: Request) -> Answer:
    from serving.model import checkpoint

    found = checkpoint.check(request.options.folder, measure_reading=request.options.read_speed)
    code = ExitCode.NO if found.failed else ExitCode.OK
    return Answer(checkpoint.text(found), checkpoint.as_json(found), code)


def _plan(request: Request) -> Answer:
    from serving.capacity import memory
    from serving.capacity.plan_request import PlanRequest, VisionMode
    from serving.model import checkpoint

    options = request.options
    config = checkpoint.load_config(options.folder)
    plan = memory.plan(
        config,
        PlanRequest(
            cards=options.cards,
            tp=options.tp,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            gpu_memory_utilization=options.gpu_memory_utilization,
            chip=options.chip,
            hbm=options.hbm,
            vision=VisionMode(options.vision),
            hybrid_kv=not options.no_hybrid_kv,
            expert_parallel=options.expert_parallel,
            max_num_batched_tokens=options.max_num_batched_tokens,
            head_room=options.head_room,
            image=options.image,
        ),
    )
    return Answer(memory.text(plan), memory.as_json(plan), ExitCode.NO if plan.failed else ExitCode.OK)


def _explain(request: Request) -> Answer:
    from serving import faults

    options = request.options
    found = faults.explain_log(options.log) if options.log else faults.explain(options.text)
    known = any(explanation.known for explanation in found)
    return Answer(
        faults.text(found, request.kit),
        faults.as_json(found, request.kit),
        ExitCode.OK if known else ExitCode.NO,
    )


def _preflight(request: Request) -> Answer:
    import os

    from serving.machine.host import Host
    from serving.start import preflight, profiles

    options = request.options
    start = preflight.Start(
        model=options.folder,
        profile=profiles.load(options.profile),
        host=options.host,
        port=options.port,
        has_key=options.with_key or bool(os.environ.get("VLLM_API_KEY")),
        arguments=tuple(options.arguments),
    )
    names = " ".join(_target_options(options))
    found = preflight.look(start, Host(), request.manifest, request.target, frozenset(options.ignore), names)
    return Answer(
        preflight.text(found, request.kit, names),
        preflight.as_json(found, request.kit, names),
        ExitCode.NO if found.failed else ExitCode.OK,
    )


def _flags(request: Request) -> Answer:
    from serving.start import flags

    given = request.options.arguments
    if not given:
        return Answer(flags.table(), {"table": flags.table_json()})
    advice = flags.advise(given)
    return Answer(flags.text(advice), {"advice": flags.as_json(advice)})


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
    return Answer(found.text, found.as_json, ExitCode.NO if found.failed else ExitCode.OK)


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
    found = {"kit": VERSION}
    try:
        status = state.inspect(request.manifest, request.target)
    except KitError as error:
        return found | {"set": f"{request.manifest.id}, not looked at: {error.what}"}
    packages = {
        package.name: request.target.locations[package.import_name].version or "?"
        for package in request.manifest.packages
    }
    return found | {"set": f"{request.manifest.id}, {status.state.value}"} | packages


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


def _fetch(request: Request) -> Answer:
    from serving.download import fetch

    options = request.options
    wanted = fetch.FetchRequest(
        folder=options.to or Path(options.repo.rpartition("/")[2]),
        source=fetch.Source(options.source),
        repo=options.repo,
        revision=options.revision,
        python=options.python,
    )
    found = fetch.run(wanted)
    if found.report.failed:
        return Answer(fetch.text(found), fetch.as_json(found), ExitCode.NO)
    return Answer(
        fetch.text(found),
        fetch.as_json(found),
        next_step=fetch.next_step(found).replace("{kit}", request.kit),
    )


def _target_arguments(verb: argparse.ArgumentParser) -> None:
    where = verb.add_mutually_exclusive_group()
    where.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="the interpreter whose packages are meant (default: that of the vllm command, or python3)",
    )
    where.add_argument(
        "--root", type=Path, metavar="DIR", help="a folder that holds vllm/ and vllm_ascend/, instead"
    )


def _verify_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--fast", action="store_true", help="the bytes alone")


def _overlay_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--out", type=Path, metavar="DIR", help="where to (default: build/overlay/<set>)")


def _doctor_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--list", action="store_true", help="the names of all checks")
    verb.add_argument(
        "--ignore", action="append", default=[], metavar="NAME", help="leave a check out; may be repeated"
    )
    verb.add_argument("--port", type=int, default=8000, metavar="N", help="where to serve (default: 8000)")
    verb.add_argument(
        "--model", type=Path, metavar="DIR", help="the model folder, for its disk and its files"
    )


def _folder_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "folder", type=Path, metavar="DIR", help="the model folder that vllm serve would be given"
    )


def _check_model_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--read-speed", action="store_true", help="read a shard for 3 s: how long will loading take?"
    )


def _plan_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--cards", type=int, default=8, metavar="N", help="cards in the machine (default: 8)")
    verb.add_argument("--tp", type=int, default=8, metavar="N", help="--tensor-parallel-size (default: 8)")
    verb.add_argument("--max-model-len", type=int, metavar="N", help="tokens a request (default: what fits)")
    verb.add_argument("--max-num-seqs", type=int, metavar="N", help="requests at once (default: what fits)")
    verb.add_argument("--gpu-memory-utilization", type=float, default=0.9, metavar="F", help="default: 0.9")
    verb.add_argument("--chip", default="910B3", help="default: 910B3")
    verb.add_argument(
        "--hbm", type=float, metavar="GIB", help="memory of a card, where the chip is not known"
    )
    verb.add_argument(
        "--vision",
        choices=("weights", "data"),
        default="weights",
        help="--mm-encoder-tp-mode (default: weights)",
    )
    verb.add_argument(
        "--max-num-batched-tokens", type=int, default=2048, metavar="N", help="tokens a step (default: 2048)"
    )
    verb.add_argument(
        "--head-room", type=float, metavar="GIB", help="beside weights and KV cache, as a start has shown"
    )
    verb.add_argument("--no-hybrid-kv", action="store_true", help="every layer keeps every token")
    verb.add_argument("--expert-parallel", action="store_true", help="as with --enable-expert-parallel")
    verb.add_argument("--image", type=_width_and_height, metavar="WxH", help="count the tokens of a picture")


def _width_and_height(text: str) -> tuple[int, int]:
    from serving.capacity.plan_request import picture_size

    try:
        return picture_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected WIDTHxHEIGHT, such as 1024x768, got {text!r}") from None


def _explain_arguments(verb: argparse.ArgumentParser) -> None:
    what = verb.add_mutually_exclusive_group(required=True)
    what.add_argument("text", nargs="?", metavar="TEXT", help="the error, as it was printed")
    what.add_argument("--log", type=Path, metavar="FILE", help="a whole log instead; /dev/stdin for a pipe")


def _preflight_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--profile", default="bf16-tp8", metavar="NAME", help="or a file (default: bf16-tp8)")
    verb.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default: 127.0.0.1")
    verb.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000")
    verb.add_argument("--with-key", action="store_true", help="an API key will be set (VLLM_API_KEY is seen)")
    verb.add_argument(
        "--ignore", action="append", default=[], metavar="NAME", help="leave a check out; may be repeated"
    )
    _vllm_arguments(verb)


def _vllm_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("arguments", nargs="*", metavar="FLAG", help="after --: what vllm serve would be given")


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
    found = float(text)
    if not 0 <= found <= 86400:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to 86400, got {text!r}")
    return found


def _tokens(text: str) -> int:
    found = int(text)
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


def _fetch_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--to", type=Path, metavar="DIR", help="default: the repository's name, here")
    verb.add_argument(
        "--source", choices=("huggingface", "modelscope"), default="huggingface", help="default: huggingface"
    )
    verb.add_argument("--revision", metavar="REV", help="commit, tag or branch (default: the hub's)")
    verb.add_argument("--repo", default="stepfun-ai/Step-3.7-Flash", help="default: %(default)s")
    verb.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="a Python with the hub's library (default: that of the vllm command)",
    )


VERBS = {
    "bench": Verb(
        "measure a running server with the guide's eight rows, or others",
        _bench,
        (_target_arguments, _bench_arguments),
    ),
    "report": Verb(
        "a benchmark beside the guide's table and the roofline, or beside another",
        _report,
        (_report_arguments,),
    ),
    "fetch": Verb("download the model from a hub, then check it", _fetch, (_fetch_arguments,)),
    "status": Verb(
        "what is installed: pristine, applied, partial, drifted, unsupported or native",
        _status,
        (_target_arguments,),
    ),
    "apply": Verb("install the set: all of its files, or none", _apply, (_target_arguments,)),
    "verify": Verb(
        "prove it: the bytes, every name, then an import in a fresh interpreter",
        _verify,
        (_target_arguments, _verify_arguments),
    ),
    "diff": Verb(
        "print the whole set as one unified diff, from pristine to applied", _diff, (_target_arguments,)
    ),
    "revert": Verb("undo the set: all of its files, or none", _revert, (_target_arguments,)),
    "overlay": Verb(
        "build the full files, to be mounted over an untouched container",
        _overlay,
        (_target_arguments, _overlay_arguments),
    ),
    "doctor": Verb(
        "look at the whole machine before a start: packages, devices, driver, environment",
        _doctor,
        (_target_arguments, _doctor_arguments),
    ),
    "check-model": Verb(
        "look at a model folder: config, tokenizer, every tensor of every shard by name and size",
        _check_model,
        (_folder_argument, _check_model_arguments),
    ),
    "plan": Verb(
        "what fits: weights, KV cache, context and concurrency on a card, and the flags to type",
        _plan,
        (_folder_argument, _plan_arguments),
    ),
    "preflight": Verb(
        "before a start: the profile, the flags of other recipes, and what this machine lacks",
        _preflight,
        (_target_arguments, _folder_argument, _preflight_arguments),
    ),
    "flags": Verb(
        "flags and variants of other recipes: what each does on 910B3 with this release",
        _flags,
        (_vllm_arguments,),
    ),
    "smoke": Verb(
        "ask a running server what its users would, and tell the faults of its answers apart",
        _smoke,
        (_smoke_arguments,),
    ),
    "explain": Verb("an error of a start-up, to its cause and cure", _explain, (_explain_arguments,)),
}


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
    if options.json:
        print(json.dumps({"verb": options.verb, "exit_code": answer.exit_code} | answer.data, indent=2))
        return answer.exit_code
    sys.stdout.buffer.write(answer.raw)
    print(answer.text, end="\n" if answer.text else "")
    if answer.next_step:
        print(f"\nNext: {answer.next_step}")
    return answer.exit_code


def _run(options: argparse.Namespace, kit: str) -> Answer:
    """The verb, with whatever else may go wrong turned into an error of ours."""
    request = Request(options, kit)
    try:
        return VERBS[options.verb].run(request)
    except _Interrupted as signal_name:
        return _interrupted(request, str(signal_name))
    except OSError as error:
        # Every failure while files are being replaced is handled where it happens.
        raise Refused(
            f"{error.filename or 'a file'} failed ({error.strerror})", "remove the cause: {again}"
        ) from error


def _interrupted(request: Request, signal_name: str) -> Answer:
    """What a signal left: nothing, or the whole job where it came a moment too late. The disk tells."""
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)
    goal = {"apply": SetState.APPLIED, "revert": SetState.PRISTINE}.get(request.options.verb)
    if goal is not None:
        found = state.inspect(request.manifest, request.target)
        if found.state is goal:
            sentence = f"interrupted by {signal_name}, when nothing was left to do. {report.summary(found)}"
            return Answer(sentence, report.status_json(found))
    raise PutBack(f"interrupted by {signal_name}", "to try again, type: {again}")


def _fail(error: KitError, next_step: str, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"exit_code": error.exit_code} | report.error_json(error, next_step), indent=2))
    else:
        print(f"kit: {error}\nNext: {next_step}", file=sys.stderr)
    return error.exit_code


def bundle() -> Folder:
    """The kit's own files: the checkout around this module, or the archive that it is in."""
    archive = getattr(__spec__.loader if __spec__ else None, "archive", None)
    if archive is None:
        return Path(__file__).resolve().parent.parent
    import zipfile  # a tenth of the start-up time, and only the archive needs it

    return zipfile.Path(archive)


def _target_options(options: argparse.Namespace) -> list[str]:
    if options.root:
        return ["--root", shlex.quote(str(options.root))]
    return ["--python", shlex.quote(str(options.python))] if options.python else []


def _paragraphs(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part)


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interrupted(BaseException):
    """A signal that asks to stop; not an Exception, so that nothing takes it for a fault."""


def _stop_cleanly_on_signals() -> None:
    for number in _STOPPING:
        signal.signal(number, _interrupt)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    raise _Interrupted(signal.Signals(number).name)


def _be_printable() -> None:
    """Print any path in any locale, rather than die of it."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
