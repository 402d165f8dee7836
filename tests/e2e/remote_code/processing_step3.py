# SPDX-License-Identifier: Apache-2.0
"""Processor code that a checkpoint brings along, written for an older transformers."""

from typing import Any

from transformers import ProcessorMixin


class Step3VLProcessor(ProcessorMixin):  # type: ignore[misc]
    def __init__(self, tokenizer: Any = None, chat_template: str | None = None) -> None:
        super().__init__(tokenizer, chat_template=chat_template)
