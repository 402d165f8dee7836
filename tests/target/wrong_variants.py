# SPDX-License-Identifier: Apache-2.0
"""Ways to get the two files of vllm-ascend wrong, as edits of the real ones."""

from __future__ import annotations

from target.real_packages import Edit

_GATE = "silu(x[..., :d]).clamp(max=limit)"
_BOTH = f"{_GATE}\n    up = x[..., d:]"

CLAMP_BEFORE_SILU = "clamp before silu"

WRONG_ACTIVATIONS = {
    CLAMP_BEFORE_SILU: Edit(_GATE, "silu(x[..., :d].clamp(max=limit))"),
    "gate not clamped": Edit(_GATE, "silu(x[..., :d])"),
    "gate clamped from below too": Edit("clamp(max=limit)", "clamp(min=-limit, max=limit)"),
    "up not clamped": Edit("x[..., d:].clamp(min=-limit, max=limit)", "x[..., d:]"),
    "up clamped from above only": Edit("clamp(min=-limit, max=limit)", "clamp(max=limit)"),
    "halves exchanged": Edit(_BOTH, "silu(x[..., d:]).clamp(max=limit)\n    up = x[..., :d]"),
    "halves interleaved": Edit(_BOTH, "silu(x[..., ::2]).clamp(max=limit)\n    up = x[..., 1::2]"),
    "limit ignored": Edit(
        "    d = x.shape[-1] // 2\n    gate", "    d, limit = x.shape[-1] // 2, 7.0\n    gate"
    ),
    "nothing clamped": Edit("return gate * up", "return torch.nn.functional.silu(x[..., :d]) * x[..., d:]"),
    "no number": Edit("return gate * up", "return gate * up * math.nan"),
}
"""Edits of the patched activation.py."""

WRONG_BRANCHES = {
    "branch not taken": Edit('elif act_name == "swiglustep"', 'elif act_name == "swiglu_step"'),
    "other limit": Edit("else 7.0)", "else 8.0)"),
    "enum not known": Edit('elif act_name == "swiglustep"', 'elif activation == "swiglustep"'),
}
"""Edits of the patched moe_mlp.py."""

_PLAIN = "    else:\n        gate_up_out = torch_npu.npu_swiglu(gate_up_out)\n\n    if topk_scales"

GUIDE_TO_THE_LETTER = (
    Edit("import AscendSwigluOAIAndMul\n", "import AscendSwigluOAIAndMul, swiglustep_and_mul\n"),
    Edit(
        _PLAIN,
        '    elif act_name == "swiglustep":\n'
        "        limit = swiglu_limit if swiglu_limit > 0 else 7.0\n"
        "        gate_up_out = swiglustep_and_mul(gate_up_out, limit=limit)\n"
        f"{_PLAIN}",
    ),
)
"""Edits of the pristine moe_mlp.py: the import and the branch, which are all that the public guide shows."""
