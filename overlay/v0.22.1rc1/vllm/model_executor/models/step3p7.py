# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The step3p7 patch kit contributors
"""Step-3.7-Flash on vLLM 0.22.1.

The published model joins two parts that this release already has: the vision tower
of Step-VL (``PerceptionEncoder`` and a linear projector, ``step_vl.py``) and the
text model of Step-3.5 (``Step3p5ForCausalLM``, looked up by the architecture that
``text_config`` names). What is new is how a checkpoint names its tensors, where the
image token may lie, and that the router's bias stays float32. Pictures are processed
as for Step3-VL, whose graphs of the vision encoder do not fit this tower.
"""

from vllm.config import VllmConfig

from .step_vl import StepVLForConditionalGeneration
from .utils import WeightsMapper


class Step3p7ForConditionalGeneration(StepVLForConditionalGeneration):
    """``Step3p7ForConditionalGeneration`` of a checkpoint's ``architectures``."""

    # Two layouts are published: flat names ("model.layers.0.", "vision_model.") and
    # names grouped by part ("model.language_model.layers.0.", "model.vision_model.").
    # A prefix carries no final dot, for a quantisation config names whole modules
    # ("model.vision_model"), and the catch-all "model." comes last: the first prefix
    # that fits renames, and none of the results starts with "model." again.
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "model.vision_model": "vision_model",
            "model.vit_large_projector": "vit_large_projector",
            "model.language_model": "language_model.model",
            "model.": "language_model.model.",
            "lm_head": "language_model.lm_head",
        },
        orig_to_new_substr={
            ".attn.in_proj_weight": ".attn.qkv_proj.weight",
            ".attn.in_proj_bias": ".attn.qkv_proj.bias",
            ".mlp.c_fc": ".mlp.fc1",
            ".mlp.c_proj": ".mlp.fc2",
        },
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        # New in this release, and inherited: Step3-VL captures its encoder in graphs, if
        # asked to. Their width is read from a hidden_size that this config has in its
        # text_config alone, and they shard pictures a second time in data mode.
        if vllm_config.compilation_config.cudagraph_mm_encoder:
            raise ValueError(
                "Step-3.7 does not support graphs of the vision encoder: leave "
                "cudagraph_mm_encoder out of --compilation-config."
            )
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        # Step3-VL's own constructor does this and Step-VL's does not. Without it an
        # <im_patch> id beyond the text embedding (vocab_size, padded to a multiple of
        # 64) is looked up there, and the first picture ends in an IndexError. The
        # published id, 128001 of 128896, lies inside; a trimmed vocabulary's may not.
        config = vllm_config.model_config.hf_config
        self.configure_mm_token_handling(
            config.text_config.vocab_size, [config.image_token_id]
        )
        # The router's bias is float32 in a checkpoint and in vLLM. vllm-ascend's MoE layer
        # rounds it to the model's dtype as it is built, and of two experts that are nearly
        # even the other one may then be chosen. Nothing is loaded yet, so nothing is lost.
        for name, parameter in self.named_parameters():
            if name.endswith(".router_bias"):
                parameter.data = parameter.data.float()
