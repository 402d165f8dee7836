# SPDX-License-Identifier: Apache-2.0
"""Configuration classes that a Step-3.7 checkpoint brings along: what ``config.json`` says, as attributes.

transformers 5.5.3 has no ``step3p7``; ``--trust-remote-code`` makes it use these instead.
"""

from typing import Any, ClassVar

from transformers import PretrainedConfig


class Step3p7VisionConfig(PretrainedConfig):  # type: ignore[misc]
    """The tower, a perception encoder."""

    model_type = "perception_encoder"


class Step3p7TextConfig(PretrainedConfig):  # type: ignore[misc]
    """The language model, as in Step-3.5."""

    model_type = "step3p5"

    def __init__(self, **fields: Any) -> None:
        # config.json counts the MTP layers in its lists; transformers wants one type a layer.
        if fields.get("layer_types"):
            fields["layer_types"] = fields["layer_types"][: fields["num_hidden_layers"]]
        # The base class looks at the rotary fields while it is built, so they come first.
        for name, value in fields.items():
            setattr(self, name, value)
        super().__init__(**fields)


class Step3p7Config(PretrainedConfig):  # type: ignore[misc]
    """Both halves, and how a picture is written in the prompt."""

    model_type = "step3p7"
    sub_configs: ClassVar = {"vision_config": Step3p7VisionConfig, "text_config": Step3p7TextConfig}

    def __init__(
        self,
        vision_config: dict[str, Any] | None = None,
        text_config: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.vision_config = Step3p7VisionConfig(**(vision_config or {}))
        self.text_config = Step3p7TextConfig(**(text_config or {}))
        super().__init__(**fields)
