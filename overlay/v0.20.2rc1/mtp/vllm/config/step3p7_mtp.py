# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The step3p7 patch kit contributors
"""What Step-3.7's own draft layers need to know of the configuration, and what is refused.

The draft layers (three; 45 to 47 in the published checkpoint) follow the main ones, and
``config.json`` counts them in its lists of one entry a layer (``layer_types``,
``rope_theta``, ``partial_rotary_factors``, ``swiglu_limits``, ...). transformers 5 and
the configuration code that comes with the checkpoint crop these lists to the main
layers, and a draft layer that looks itself up there ends in an IndexError.
"""

from typing import TYPE_CHECKING

from transformers import PretrainedConfig
from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

if TYPE_CHECKING:
    from vllm.config.speculative import SpeculativeConfig

DRAFT_MODEL_TYPE = "step3p5_mtp"
"""Of the configuration that ``hf_config_override`` makes for ``models/step3p5_mtp.py``."""


def text_config_with_draft_layers(config: PretrainedConfig) -> PretrainedConfig:
    """The text half of a Step-3.7 configuration, its lists as long as ``config.json`` has them.

    Raises:
        ValueError: the checkpoint has no draft layers, or not all of them.
    """
    folder = config._name_or_path
    published = get_hf_file_to_dict("config.json", folder)["text_config"]
    main = published["num_hidden_layers"]
    draft = published.get("num_nextn_predict_layers") or 0
    _require_draft_layers(folder, range(main, main + draft))
    text_config = config.text_config
    text_config.num_nextn_predict_layers = draft
    for name, value in published.items():
        if isinstance(value, list) and len(value) == main + draft:
            setattr(text_config, name, value)
    return text_config


def _require_draft_layers(folder: str, layers: range) -> None:
    """By the index alone, for the weights are loaded only after those of the main model."""
    if not layers:
        raise ValueError(
            f"{folder}: config.json names no draft layers (num_nextn_predict_layers), "
            "and method mtp drafts with nothing else. Serve without --speculative-config."
        )
    index = get_hf_file_to_dict("model.safetensors.index.json", folder)
    if index is None:
        return
    names = index["weight_map"]
    found = [layer for layer in layers if any(f".layers.{layer}.eh_proj." in name for name in names)]
    if found != list(layers):
        raise ValueError(
            f"{folder}: the checkpoint has {len(found)} of its {len(layers)} draft layers "
            f"(expected {list(layers)}, found {found} in model.safetensors.index.json). "
            "Serve without --speculative-config, or fetch the missing files."
        )


def refuse_what_is_not_built(speculative: "SpeculativeConfig") -> None:
    """Every draft layer gives one token, and drafts on the cards of the whole model.

    Raises:
        ValueError: more tokens than draft layers, or a division of the work for which
            the drafting was not built.
    """
    layers = speculative.draft_model_config.hf_config.num_nextn_predict_layers
    asked = speculative.num_speculative_tokens
    if asked > layers:
        raise ValueError(
            f"num_speculative_tokens is {asked}, and the checkpoint has {layers} draft layers, "
            f"each of which gives one token: 1 to {layers} can be served."
        )
    parallel = speculative.target_parallel_config
    divided = {
        "pipeline parallel": parallel.pipeline_parallel_size,
        "data parallel": parallel.data_parallel_size,
        "prefill context parallel": parallel.prefill_context_parallel_size,
        "decode context parallel": parallel.decode_context_parallel_size,
    }
    for name, size in divided.items():
        if size > 1:
            raise ValueError(
                f"Step-3.7 drafts under tensor parallel alone, and {name} is {size}: "
                "leave it at 1, or serve without --speculative-config."
            )
    own = speculative.draft_tensor_parallel_size
    if own not in (None, parallel.tensor_parallel_size):
        raise ValueError(
            f"draft_tensor_parallel_size is {own}, and the draft layers of Step-3.7 share the "
            f"model's {parallel.tensor_parallel_size} cards: leave it out."
        )
    if speculative.disable_padded_drafter_batch:
        raise ValueError(
            "Step-3.7 drafts over the whole window of a step: leave disable_padded_drafter_batch out."
        )
