# SPDX-License-Identifier: Apache-2.0
"""What every server is asked, however it serves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from e2e.server import Server
from tiny.conversations import CHINESE, ask, picture
from tiny.engine import Question

Serve = Callable[..., AbstractContextManager[Server]]
"""A root, a model folder, and the way; the server is stopped at the end of the block."""

PICTURE = picture(1024, 768)
"""A whole view and four crops in two rows."""

TEXTS = {"text": CHINESE, "picture": "这张图片里有什么？"}
PICTURES = {"text": [], "picture": [PICTURE]}
QUESTIONS = {name: Question(ask(text, *PICTURES[name])) for name, text in TEXTS.items()}
