# SPDX-License-Identifier: Apache-2.0
"""What the tiny model is asked, text and pictures drawn on the spot; and the prompts that it makes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from tokenizers import Tokenizer

from tiny.pictures import Views

Message = dict[str, Any]

CHINESE = "你好，世界！ 请用一句话介绍你自己。 two  spaces\nand a new line"
LONG_CHINESE = (
    "服务器在数据中心里运行，每台服务器有八张加速卡。运维工程师在夜里接到电话，说服务没有响应。"
    "他打开电脑，查看日志，发现磁盘已经写满；他清理了旧的文件，重新启动服务，五分钟以后一切恢复正常。"
)


def ask(text: str, *pictures: Image.Image) -> list[Message]:
    """One turn of a user, as the OpenAI protocol has it; pictures come first."""
    if not pictures:
        return [{"role": "user", "content": text}]
    parts = [{"type": "image_url", "image_url": {"url": data_url(picture)}} for picture in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def prompt_ids(model: Path, text: str, views: Sequence[Views] = ()) -> list[int]:
    """What `ask` becomes, by the tokenizer's file alone and the published rules for pictures."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    turn = f"<|im_start|>user\n{'<im_patch>' * len(views)}{text}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    pictures = iter(views)
    tokens: list[str] = []
    for token in tokenizer.encode(turn).tokens:
        tokens += next(pictures).placeholders if token == "<im_patch>" else [token]
    return [tokenizer.token_to_id(token) for token in tokens]


def picture(width: int, height: int) -> Image.Image:
    """Red grows to the right, green downwards; blue is a chequered pattern of 16 pixels. RGB."""
    red = Image.linear_gradient("L").rotate(90).resize((width, height))
    green = Image.linear_gradient("L").resize((width, height))
    squares = Image.new("L", (2, 2))
    squares.putdata([0, 200, 200, 0])
    tile = squares.resize((32, 32), Image.Resampling.NEAREST)
    blue = Image.new("L", (width, height))
    for left in range(0, width, 32):
        for top in range(0, height, 32):
            blue.paste(tile, (left, top))
    return Image.merge("RGB", (red, green, blue))


def data_url(drawn: Image.Image) -> str:
    content = BytesIO()
    drawn.save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
