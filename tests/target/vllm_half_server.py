# SPDX-License-Identifier: Apache-2.0
"""Run inside the target: answers questions about the vLLM that its path names.

One JSON line in, {"question", "arguments"}; one out, {"value"} or {"raised", "text"}.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from target import vllm_half_engine as engine
from target.vllm_half_checkpoint import ARCHITECTURE

Facts = dict[str, Any]


def registered_in() -> list[str]:
    """The registry's dictionaries that hold the architecture (merged ones too)."""
    from vllm.model_executor.models import registry

    tables = {name: value for name, value in vars(registry).items() if isinstance(value, dict)}
    return [name for name, table in tables.items() if ARCHITECTURE in table]


def supported() -> bool:
    from vllm.model_executor.models.registry import ModelRegistry

    return ARCHITECTURE in ModelRegistry.get_supported_archs()


def resolve(folder: str) -> str:
    """The architecture that vLLM chooses for a model folder."""
    from vllm.config import ModelConfig

    return str(ModelConfig(model=folder, trust_remote_code=True).architecture)


def model_class() -> Facts:
    from vllm.model_executor.models import interfaces
    from vllm.model_executor.models.registry import ModelRegistry

    found = ModelRegistry.models[ARCHITECTURE].load_model_cls()
    return {
        "name": f"{found.__module__}.{found.__name__}",
        "ancestors": [ancestor.__name__ for ancestor in found.__mro__[1:]],
        "multimodal": interfaces.supports_multimodal(found),
        "pipeline parallel": interfaces.supports_pp(found),
        "tower in data mode": found.supports_encoder_tp_data,
        "processor": found._processor_factory.processor.__name__,
        "placeholder": found.get_placeholder_str("image", 1),
    }


def map_names(names: list[str]) -> list[str | None]:
    return [_mapper()._map_name(name) for name in names]


@lru_cache
def _mapper() -> Any:
    from vllm.model_executor.models.registry import ModelRegistry

    return ModelRegistry.models[ARCHITECTURE].load_model_cls().hf_to_vllm_mapper


@lru_cache
def _tokenizer(folder: str, trust_remote_code: bool) -> Any:
    from vllm.tokenizers.registry import get_tokenizer

    return get_tokenizer(folder, trust_remote_code=trust_remote_code)


def tokenizer(folder: str, trust_remote_code: bool = True) -> Facts:
    return _describe(_tokenizer(folder, trust_remote_code))


def unpickled_tokenizer(folder: str) -> Facts:
    return _describe(pickle.loads(pickle.dumps(_tokenizer(folder, True))))


def _describe(tokenizer: Any) -> Facts:
    classes = [cls.__name__ for cls in type(tokenizer).__mro__]
    return {
        "class": classes[0],
        "wrappers": [name for name in classes if name.startswith("Cached")],
        "max_chars_per_token": getattr(tokenizer, "max_chars_per_token", None),
        "max_token_id": getattr(tokenizer, "max_token_id", None),
        "ids of 你好": tokenizer("你好", add_special_tokens=False)["input_ids"],
    }


def round_trip(folder: str, text: str, trust_remote_code: bool = True) -> Facts:
    found = _tokenizer(folder, trust_remote_code)
    ids = found(text, add_special_tokens=False)["input_ids"]
    return {"ids": ids, "text": found.decode(ids)}


QUESTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        registered_in,
        supported,
        resolve,
        model_class,
        map_names,
        tokenizer,
        unpickled_tokenizer,
        round_trip,
        engine.answers_of,
    )
}


def answer(line: str) -> Facts:
    asked = json.loads(line)
    try:
        return {"value": QUESTIONS[asked["question"]](**asked["arguments"])}
    except Exception as error:
        return {"raised": type(error).__name__, "text": str(error)}


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # vLLM prints to both; the log takes it
    for line in sys.stdin:
        print(json.dumps(answer(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
