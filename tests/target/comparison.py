# SPDX-License-Identifier: Apache-2.0
"""How results are compared where "close" is not enough."""

from __future__ import annotations

import torch


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in dtype, shape and every bit: a zero's sign and a NaN's payload count."""
    width = {2: torch.int16, 4: torch.int32}[one.element_size()]
    if one.dtype != other.dtype:
        return False
    return bool(torch.equal(one.contiguous().view(width), other.contiguous().view(width)))
