# SPDX-License-Identifier: Apache-2.0
"""How many tokens a picture takes, as ``Step3VLImageProcessor`` of vLLM 0.20.2 counts them.

A picture is always seen whole (728 × 728, 169 tokens and two marks); a large or long one also
in crops (504 × 504, 81 tokens and two marks each), with a mark at the end of each row of crops
but the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.model.model_config import CROP_PIXELS, CROP_TOKENS, GLOBAL_VIEW_PIXELS, GLOBAL_VIEW_TOKENS

LARGEST_SIDE = 3024
"""A larger picture is scaled down to this first."""

_MARKS = 2
_PAD_BELOW = 32
_PAD_RATIO = 4
_LONG_RATIO = 1.5
_VERY_LONG_RATIO = 4
_NEXT_CROP_FROM = 0.2
"""A side is rounded up to one more crop where more than this share of a crop is left over."""


@dataclass(frozen=True)
class Crops:
    """The grid of crops beside the whole view; none where both are 0."""

    columns: int
    rows: int

    @property
    def count(self) -> int:
        return self.columns * self.rows

    @property
    def row_marks(self) -> int:
        return max(self.rows - 1, 0)


def tokens(width: int, height: int, crops: bool = True) -> int:
    """171 + 83 · crops + (rows of crops - 1), for a picture of ``width`` × ``height`` pixels.

    Raises:
        ValueError: a side that is not positive, or so thin that vLLM itself scales it to nothing.
    """
    grid = crops_of(width, height) if crops else Crops(0, 0)
    return GLOBAL_VIEW_TOKENS + _MARKS + (CROP_TOKENS + _MARKS) * grid.count + grid.row_marks


def most_tokens(crops: bool = True) -> int:
    """What the largest picture takes: vLLM profiles the encoder and sizes its cache with it."""
    return tokens(LARGEST_SIDE, LARGEST_SIDE, crops)


def crops_of(width: int, height: int) -> Crops:
    """The grid of crops (``ImagePatcher.get_num_patches``)."""
    width, height = _scaled(*_padded(width, height))
    if min(width, height) < 1:
        raise ValueError("a picture this thin has no pixel left after scaling")
    window = _window(max(width, height), min(width, height))
    if window == 0:
        return Crops(0, 0)
    return Crops(_along(width, window), _along(height, window))


def _padded(width: int, height: int) -> tuple[int, int]:
    """A thin and small picture is padded to a square."""
    if width < 1 or height < 1:
        raise ValueError(f"{width} × {height} is no size of a picture")
    thin = not 1 / _PAD_RATIO <= width / height <= _PAD_RATIO
    if min(width, height) < _PAD_BELOW and thin:
        return (max(width, height),) * 2
    return width, height


def _scaled(width: int, height: int) -> tuple[int, int]:
    largest = max(width, height)
    if largest <= LARGEST_SIDE:
        return width, height
    factor = LARGEST_SIDE / largest
    return int(width * factor), int(height * factor)


def _window(long: int, short: int) -> int:
    """The side of a crop; 0 for a picture that the whole view shows well enough."""
    if long < GLOBAL_VIEW_PIXELS:
        return short if long / short > _LONG_RATIO else 0
    return min(short, CROP_PIXELS) if long / short > _VERY_LONG_RATIO else CROP_PIXELS


def _along(side: int, window: int) -> int:
    """Crops along one side, after the side is rounded to whole crops."""
    if side < window:
        return 1
    left_over = side / window - side // window
    return max(side // window + (1 if left_over > _NEXT_CROP_FROM else 0), 1)
