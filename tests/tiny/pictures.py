# SPDX-License-Identifier: Apache-2.0
"""From a picture to what the tower is shown: the whole of it, and crops where it is large or long.

The rules are the published model's. Every size is in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image

WHOLE, CROP = 728, 504
WHOLE_TOKENS, CROP_TOKENS = 169, 81
LARGEST = 3024
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)

Size = tuple[int, int]
"""Width and height."""


@dataclass(frozen=True)
class Views:
    """``whole`` ``[3, 728, 728]``; ``crops`` ``[rows * columns, 3, 504, 504]``, row by row. float32."""

    whole: torch.Tensor
    crops: torch.Tensor
    columns: int

    @property
    def placeholders(self) -> list[str]:
        """The tokens that stand for the picture in a prompt; features take the place of ``<im_patch>``."""
        crop = ["<patch_start>", *["<im_patch>"] * CROP_TOKENS, "<patch_end>"]
        rows = [crop * self.columns for _ in range(0, len(self.crops), self.columns or 1)]
        written = [token for row in rows for token in (*row, "<patch_newline>")]
        return [*written[:-1], "<im_start>", *["<im_patch>"] * WHOLE_TOKENS, "<im_end>"]


def look_at(picture: Image.Image) -> Views:
    """The views of an RGB picture."""
    picture = shrink(square_if_thin(picture))
    window = window_of(picture.size)
    if not window:
        return Views(scale(picture, WHOLE), torch.zeros(0, 3, CROP, CROP), 0)
    width, height = (fit(side, window) for side in picture.size)
    tiled = picture.resize((width, height), Image.Resampling.BILINEAR)
    boxes = [
        (left, top, left + window, top + window)
        for top in range(0, height, window)
        for left in range(0, width, window)
    ]
    crops = [scale(tiled.crop(box), CROP) for box in boxes]
    return Views(scale(picture, WHOLE), torch.stack(crops), len(range(0, width, window)))


def square_if_thin(picture: Image.Image) -> Image.Image:
    """A strip under 32 pixels wide and over four times as long lies in the corner of a black square."""
    short, long = sorted(picture.size)
    if short >= 32 or long <= 4 * short:
        return picture
    square = Image.new(picture.mode, (long, long))
    square.paste(picture)
    return square


def shrink(picture: Image.Image) -> Image.Image:
    """No side longer than `LARGEST`."""
    longest = max(picture.size)
    if longest <= LARGEST:
        return picture
    width, height = (int(side * (LARGEST / longest)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.BILINEAR)


def window_of(size: Size) -> int:
    """The side of a crop, 0 for none."""
    short, long = sorted(size)
    if long < WHOLE:
        return short if long / short > 1.5 else 0
    return min(short, CROP) if long / short > 4 else CROP


def fit(side: int, window: int) -> int:
    """A whole number of windows, one more where over a fifth of one would be lost; a short side stays."""
    if side < window:
        return side
    whole, rest = divmod(side, window)
    return window * (whole + (rest / window > 0.2))


def scale(picture: Image.Image, side: int) -> torch.Tensor:
    """``[3, side, side]``, each channel with the mean and deviation of the training data taken out."""
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    colours = pixels.reshape(picture.height, picture.width, 3).permute(2, 0, 1).float() / 255
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
    [scaled] = torch.nn.functional.interpolate(
        ((colours - mean) / deviation)[None], size=(side, side), mode="bilinear", antialias=True
    )
    return scaled
