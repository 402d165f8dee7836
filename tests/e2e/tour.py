# SPDX-License-Identifier: Apache-2.0
"""The part of ``make demo`` that needs a server: the real vLLM, patched by the kit, serves a tiny Step-3.7.

    python -m e2e.tour FOLDER

Its weights are random, so its answers are random words: what they show is that text, pictures
and turns go through the whole of vLLM, not that the model is clever.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import openai

from e2e.chat import say
from e2e.server import Server, ServerFailed, Setup, serving
from tiny.checkpoint import write_checkpoint
from tiny.conversations import ask, picture
from tiny.engine import Message

KIT = Path(__file__).resolve().parent.parent.parent / "scripts" / "kit"
TOKENS = 24
QUESTION = "你好！请用一句话介绍你自己。"
ABOUT_PICTURE = "这张图片里有什么？"
SECOND_TURN = "再说一遍，好吗？"
ROWS = ("64:16:2", "256:16:2", "131072")


class StepFailed(Exception):
    """Its message says which step, and what it said."""


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0]).resolve()
    model = folder / "model"
    try:
        print(f"demo: a tiny Step-3.7 with random weights in {model}", flush=True)
        if not (model / "config.json").is_file():
            write_checkpoint(model)
        with serving(Setup(Path(sys.executable), model), folder / "server", waiting=show_waiting) as server:
            print(f"\ndemo: {server.figures()}", flush=True)
            talk(server)
            check_and_measure(server, model, folder)
            print(f"\ndemo: {server.figures()}; stopping it", flush=True)
    except (ServerFailed, StepFailed, openai.OpenAIError) as error:
        print(
            f"\ndemo: FAILED: {error}\nNext: the whole log is {folder / 'server' / 'server.log'}",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; the server is stopped.", file=sys.stderr)
        return 130
    return 0


def show_waiting(seconds: float, _log: Path) -> None:
    print(f"\rdemo: vllm serve is starting, {seconds:.0f} s (usually 40 to 90 s) ", end="", flush=True)


def talk(server: Server) -> None:
    """A Chinese question, a picture, and a second turn that remembers the first."""
    turns: list[Message] = ask(QUESTION)
    answer = tell(server, "a Chinese question", QUESTION, turns)
    tell(server, "a picture of 1024 x 768", ABOUT_PICTURE, ask(ABOUT_PICTURE, picture(1024, 768)))
    turns += [{"role": "assistant", "content": answer}, *ask(SECOND_TURN)]
    tell(server, "a second turn", SECOND_TURN, turns)


def tell(server: Server, title: str, question: str, turns: Sequence[Message]) -> str:
    began = time.monotonic()
    reply = say(server, turns, TOKENS)
    seconds = time.monotonic() - began
    message, usage = reply.choices[0].message, reply.usage
    words = (
        message.content
        or getattr(message, "reasoning", None)
        or getattr(message, "reasoning_content", None)
        or ""
    )
    print(f"\n{title}: {question}")
    print(f"  {words!r}")
    print(f"  {usage.prompt_tokens} + {usage.completion_tokens} tokens, {seconds:.1f} s", flush=True)
    return str(words)


def check_and_measure(server: Server, model: Path, folder: Path) -> None:
    """The kit's own smoke, a bench of small rows (one does not fit), and the report."""
    results = folder / f"bench-{server.port}"
    show("smoke", "--url", server.url, "--folder", model, "--max-tokens", "48")
    show(
        "bench",
        "--url",
        server.url,
        "--out",
        results,
        "--tokenizer",
        model,
        "--rounds",
        "2",
        "--cards",
        "1",
        "--rows",
        *ROWS,
    )
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
