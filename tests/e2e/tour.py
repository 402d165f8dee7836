# SPDX-License-Identifier: Apache-2.0
"""The part of ``make demo`` that needs a server: the real vLLM, patched by the kit, serves a tiny Step-3.7.

    python -m e2e.tour FOLDER [PACKAGES]

To be run by the interpreter whose vLLM is patched, or with the folder that holds the patched
``vllm/``. Leaves with 0; with 1 if a step failed, which it names; with 130 if it was interrupted.
Whatever happens, no process is left behind.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import openai

from e2e.chat import say
from e2e.server import Server, ServerFailed, Setup, end_of, serving, session
from tiny.checkpoint import write_checkpoint
from tiny.conversations import ask, picture, prompt_ids
from tiny.engine import Message
from tiny.pictures import look_at

KIT = Path(__file__).resolve().parent.parent.parent / "scripts" / "kit"
TOKENS = 24
QUESTION = "你好！请用一句话介绍你自己。"
ABOUT_PICTURE = "这张图片里有什么？"
SECOND_TURN = "再说一遍，好吗？"
ROWS = ("256:16:2", "131072")
PICTURE = picture(1024, 768)

STEPS = (
    "a tiny Step-3.7 with random weights",
    "vllm serve",
    "a Chinese question",
    "a picture of 1024 x 768, drawn on the spot",
    "a second turn, which holds the first",
    "smoke, bench and report",
    "stop",
)
WHY_RANDOM = """\
      Its weights are random numbers, so all that it says is random words. What can be seen
      is that text and pictures reach it whole: their tokens are counted a second time, by
      tokenizer.json and the published rules for pictures, without vLLM."""

WAITS = (
    ("", "importing vLLM"),
    ("non-default args:", "reading the model folder, starting the engine"),
    ("Initializing a V1 LLM engine", "starting the worker"),
    ("Starting to load model", "loading the weights, warming up"),
    ("Supported tasks:", "warming up for pictures, opening the port"),
)
"""What its log has last said, and what it does after that."""


class StepFailed(Exception):
    """Its message says which step, and why."""


def main(arguments: Sequence[str]) -> int:
    folder, *packages = (Path(argument).resolve() for argument in arguments)
    for interruption in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(interruption, interrupt)
    began = time.monotonic()
    try:
        walk(folder, *packages)
    except StepFailed as failure:
        print(f"\ndemo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; the server is stopped, no process of it is left.", file=sys.stderr)
        return 130
    print(f"      {time.monotonic() - began:.0f} s in all")
    return 0


def interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def walk(folder: Path, packages: Path | None = None) -> None:
    model, log = folder / "model", folder / "server" / "server.log"
    with ExitStack() as at_the_end:
        with step(1):
            make(model)
        with step(2, log):
            setup = Setup(Path(sys.executable), model, packages)
            server = at_the_end.enter_context(serving(setup, log.parent, folder / "caches", Waiting()))
            tell_of_start(server)
        with step(3, log):
            turns = ask(QUESTION)
            answer = hear(server, turns, len(prompt_ids(model, QUESTION)))
        with step(4, log):
            seen = look_at(PICTURE)
            expected = len(prompt_ids(model, ABOUT_PICTURE, [seen]))
            hear(
                server,
                ask(ABOUT_PICTURE, PICTURE),
                expected,
                f", {len(seen.placeholders)} of them the picture",
            )
        with step(5, log):
            turns += [{"role": "assistant", "content": answer}, *ask(SECOND_TURN)]
            hear(server, turns)
        with step(6, log):
            check_and_measure(server, model, folder)
        with step(7, log):
            print(f"      it held {server.memory() / 2**30:.1f} GiB at the end", flush=True)
            at_the_end.close()
            if session(server.process.pid):
                raise StepFailed(f"still there: {session(server.process.pid)}")
            print("      stopped, no process of it is left")


@contextmanager
def step(number: int, log: Path | None = None) -> Iterator[None]:
    title = STEPS[number - 1]
    print(f"\n\033[1m[{number}/{len(STEPS)}] {title}\033[0m", flush=True)
    try:
        yield
    except (ServerFailed, StepFailed, openai.OpenAIError, OSError) as error:
        message = f"FAILED at step {number} of {len(STEPS)}, {title}: {error}"
        if log and not isinstance(error, ServerFailed):  # which shows the end of the log by itself
            message += f"\nThe server's log ends:\n{end_of(log)}"
        if log:
            message += f"\nNext: {KIT} explain --log {log}"
        raise StepFailed(message) from error


def make(model: Path) -> None:
    if model.exists():
        shutil.rmtree(model)
    write_checkpoint(model)
    files = list(model.iterdir())
    size = sum(file.stat().st_size for file in files)
    print(f"      {size / 1e6:.1f} MB in {len(files)} files: {model}")
    print(WHY_RANDOM, flush=True)


class Waiting:
    """Shows what a starting server does: in one line on a terminal, else in a line for each thing."""

    def __init__(self) -> None:
        self._shown = ""

    def __call__(self, seconds: float, log: Path) -> None:
        written = log.read_text("utf-8", "replace")
        doing = [wait for said, wait in WAITS if said in written][-1]
        if sys.stdout.isatty():
            print(f"\r      {seconds:3.0f} s  {doing}\033[K", end="", flush=True)
        elif doing != self._shown:
            print(f"      {seconds:3.0f} s  {doing}", flush=True)
        self._shown = doing


def tell_of_start(server: Server) -> None:
    if sys.stdout.isatty():
        print("\r\033[K", end="")
    print(f"      {server.figures()}, at {server.url}", flush=True)


def hear(server: Server, turns: Sequence[Message], expected: int | None = None, more: str = "") -> str:
    """Ask, show the answer, and answer it. ``expected``: how many tokens the prompt must have."""
    began = time.monotonic()
    reply = say(server, turns, TOKENS, extra={"ignore_eos": True})
    seconds = time.monotonic() - began
    usage, message = reply.usage, reply.choices[0].message
    words = f"{message.reasoning or ''}{message.content or ''}"
    if expected is not None and usage.prompt_tokens != expected:
        raise StepFailed(
            f"vLLM counts {usage.prompt_tokens} tokens of prompt where tokenizer.json makes {expected}: "
            "the question did not arrive whole"
        )
    again = "" if expected is None else ", and so they are by tokenizer.json"
    print(f"      asked     {text_of(turns[-1])}")
    print(f"      answered  {printable(words)}")
    print(f"      prompt    {usage.prompt_tokens} tokens{more}{again}")
    print(f"      answer    {usage.completion_tokens} tokens, {seconds:.1f} s", flush=True)
    return words


def text_of(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else str(content[-1]["text"])


def printable(words: str) -> str:
    return "".join(character if character.isprintable() else "·" for character in words)


def check_and_measure(server: Server, model: Path, folder: Path) -> None:
    """The kit's own smoke, a bench of a small row and of one that does not fit, and the report."""
    results = folder / f"bench-{server.port}"
    show("smoke", "--url", server.url, "--folder", model, "--max-tokens", "48")
    rows = ("--rounds", "2", "--cards", "1", "--rows", *ROWS)
    show("bench", "--url", server.url, "--out", results, "--tokenizer", model, *rows)
    show("report", results, "--model", model, "--chip", "910B3")


def show(*words: str | Path) -> None:
    """One command of the kit, with what it prints. A 1 is an answer of no, and no failure of the demo."""
    command = [str(KIT), *map(str, words)]
    print(f"\n\033[1m$ scripts/kit {' '.join(command[1:])}\033[0m", flush=True)
    code = subprocess.run(command).returncode
    if code not in (0, 1):
        raise StepFailed(f"kit {words[0]} left with exit code {code}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
