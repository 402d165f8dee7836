# SPDX-License-Identifier: Apache-2.0
"""What the engine of the patched vLLM is asked, and what it answers."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from target.vllm_half_checkpoint import ARCHITECTURE, TINY, Layout, Size


@dataclass(frozen=True)
class Case:
    """A model folder, and how it is served."""

    layout: Layout = Layout.FLAT
    size: Size = TINY
    architecture: str = ARCHITECTURE
    tower_mode: str = "weights"


@dataclass(frozen=True)
class Reply:
    """Token ids of the prompt and of the greedy answer; for each answered token the logits of all ids."""

    prompt: list[int]
    tokens: list[int]
    logits: list[list[float]]


@dataclass(frozen=True)
class Answers:
    """What one engine said and loaded (content of each parameter, float32)."""

    text: Reply
    picture: Reply
    other_picture: Reply
    parameters: dict[str, bytes]


Serve = Callable[[Case], Answers]


def parse(answer: Any) -> Answers:
    parameters = {name: base64.b64decode(content) for name, content in answer["parameters"].items()}
    return Answers(
        parameters=parameters, **{name: Reply(**reply) for name, reply in answer["replies"].items()}
    )


def png(colour: tuple[int, int, int], side: int = 224) -> bytes:
    """A square of one colour."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes(colour) * side) * side
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def about_picture(colour: tuple[int, int, int]) -> list[dict[str, Any]]:
    url = f"data:image/png;base64,{base64.b64encode(png(colour)).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "什么颜色？"}]
    return [{"role": "user", "content": content}]


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "text": [{"role": "user", "content": "你好，世界！ two  spaces\nand a new line"}],
    "picture": about_picture((200, 30, 60)),
    "other_picture": about_picture((20, 130, 220)),
}
