# SPDX-License-Identifier: Apache-2.0
"""Step-3.7 as one would write it by hand into vLLM 0.20.2, on Step3-VL and with a tower of its own.

Not the kit's file, and not made from it: the test beside this holds the one against the other.
"""

from typing import Any

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.activation import get_act_fn
from vllm.model_executor.layers.linear import ColumnParallelLinear
from vllm.model_executor.models.step3_vl import Step3VLForConditionalGeneration
from vllm.model_executor.models.step_vl import PerceptionEncoder
from vllm.model_executor.models.utils import WeightsMapper, init_vllm_registered_model, maybe_prefix
from vllm.model_executor.models.vision import run_dp_sharded_vision_model


class Step3p7ForConditionalGeneration(Step3VLForConditionalGeneration):  # type: ignore[misc]
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "model.vision_model.": "vision_model.",
            "model.vit_large_projector.": "vit_large_projector.",
            "model.language_model.": "language_model.model.",
            "model.": "language_model.model.",
            "lm_head.": "language_model.lm_head.",
        },
        orig_to_new_substr={
            "attn.in_proj_weight": "attn.qkv_proj.weight",
            "attn.in_proj_bias": "attn.qkv_proj.bias",
            "mlp.c_fc": "mlp.fc1",
            "mlp.c_proj": "mlp.fc2",
        },
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        settings = vllm_config.model_config
        self.config = config = settings.hf_config
        self.multimodal_config = settings.multimodal_config
        self.use_data_parallel = settings.multimodal_config.mm_encoder_tp_mode == "data"
        self.configure_mm_token_handling(config.text_config.vocab_size, [config.image_token_id])
        vision = config.vision_config
        with self._mark_tower_model(vllm_config, "image"):
            self.vision_model = PerceptionEncoder(
                vision,
                get_act_fn(vision.hidden_act),
                quant_config=vllm_config.quant_config,
                prefix=maybe_prefix(prefix, "vision_model"),
            )
            self.vit_large_projector = ColumnParallelLinear(
                4 * vision.width,
                config.text_config.hidden_size,
                bias=config.projector_bias,
                gather_output=True,
                disable_tp=self.use_data_parallel,
                prefix=maybe_prefix(prefix, "vit_large_projector"),
            )
        with self._mark_language_model(vllm_config):
            self.language_model = init_vllm_registered_model(
                vllm_config,
                hf_config=config.text_config,
                prefix=maybe_prefix(prefix, "language_model"),
            )
        self.make_empty_intermediate_tensors = self.language_model.make_empty_intermediate_tensors

    def _get_vision_model_output(self, pixels: Tensor) -> Any:
        if self.use_data_parallel:
            return run_dp_sharded_vision_model(pixels, self.vision_model)
        return self.vision_model(pixels)

    def _process_image_features(self, features: Tensor) -> Any:
        return self.vit_large_projector(features)[0]
