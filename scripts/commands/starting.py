# SPDX-License-Identifier: Apache-2.0
"""The verbs of the time before a server answers: the machine, the model folder, the start."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from patchkit.errors import BundleDamaged, ExitCode, KitError

if TYPE_CHECKING:
    from patchkit.target import Target

from .request import Answer, Request, Verb, target_arguments


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
        release = request.release
    except BundleDamaged:
        raise
    except KitError as error:
        found = error  # one finding among others: the machine can be looked at all the same
        release = request.catalogue.first  # where nothing is found, nothing is said of it
    examination = doctor.examine(
        Host(),
        release,
        found,
        frozenset(options.ignore),
        port=options.port,
        model=options.model,
    )
    return Answer(
        doctor.text(examination, request.typed),
        doctor.as_json(examination, request.typed),
        ExitCode.NO if examination.failed else ExitCode.OK,
    )


def _check_model(request: Request) -> Answer:
    from serving.model import checkpoint

    found = checkpoint.check(request.options.folder, measure_reading=request.options.read_speed)
    code = ExitCode.NO if found.failed else ExitCode.OK
    return Answer(checkpoint.text(found, request.typed), checkpoint.as_json(found, request.typed), code)


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
    text = memory.text(plan, request.typed.start(options.folder))
    return Answer(text, memory.as_json(plan), ExitCode.NO if plan.failed else ExitCode.OK)


def _explain(request: Request) -> Answer:
    from serving.faults import explaining, report, table

    options = request.options
    if options.list:
        rows = table.faults()
        return Answer(report.table(rows), {"table": report.table_json(rows)})
    found = explaining.explain_log(options.log) if options.log else explaining.explain(options.text)
    known = any(explanation.known for explanation in found)
    return Answer(
        report.text(found, request.kit),
        report.as_json(found, request.kit),
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
    names = request.typed.options
    found = preflight.look(start, Host(), request.release, request.target, frozenset(options.ignore), names)
    return Answer(
        preflight.text(found, request.typed),
        preflight.as_json(found, request.typed),
        ExitCode.NO if found.failed else ExitCode.OK,
    )


def _flags(request: Request) -> Answer:
    from serving.start import flags

    given = request.options.arguments
    if not given:
        return Answer(flags.table(), {"table": flags.table_json()})
    advice = flags.advise(given)
    return Answer(flags.text(advice), {"advice": flags.as_json(advice)})


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
    text, data = fetch.text(found, request.typed), fetch.as_json(found, request.typed)
    if found.report.failed:
        return Answer(text, data, ExitCode.NO)
    return Answer(text, data, next_step=request.typed.fill(fetch.next_step(found)))


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
    what.add_argument("--list", action="store_true", help="all that it knows, as a table")


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
    "fetch": Verb("download the model from a hub, then check it", _fetch, (_fetch_arguments,)),
    "doctor": Verb(
        "look at the whole machine before a start: packages, devices, driver, environment",
        _doctor,
        (target_arguments, _doctor_arguments),
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
        (target_arguments, _folder_argument, _preflight_arguments),
    ),
    "flags": Verb(
        "flags and variants of other recipes: what each does on 910B3 with this release",
        _flags,
        (_vllm_arguments,),
    ),
    "explain": Verb("an error of a start-up, to its cause and cure", _explain, (_explain_arguments,)),
}
