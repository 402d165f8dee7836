# SPDX-License-Identifier: Apache-2.0
"""Model code that a checkpoint brings along. Only its class and what it claims are ever looked at here."""

from transformers import PreTrainedModel


class Step3p7ForConditionalGeneration(PreTrainedModel):  # type: ignore[misc]
    _supports_attention_backend = True
