"""Convert images to tensors, and crop or resize images of any size to the input size of the network."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.data.files import Files
from acls.vision import pillow

MIDDLE = 7 / 8
"""Fraction of the shorter side that evaluation uses if training uses random resized crops."""


def decode(files: Files, names: Sequence[str], size: int) -> Tensor:
    """Decode images to uint8 ``(N, 3, size, size)``; images of another size are resized."""
    images = torch.empty((len(names), 3, size, size), dtype=torch.uint8)
    for i, name in enumerate(names):
        images[i] = to_bytes(fit(files.image(name), size))
    return images


def fit(image: Any, size: int) -> Any:
    """Resize the shorter side of an image to ``size``, and crop the centre to ``size`` x ``size``."""
    if image.size == (size, size):
        return image
    Image = pillow()
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def letterbox(
    image: Any, mask: Any, longer: int, void: int, *, square: int | None = None, u: Sequence[float] = (0.5, 0.5)
) -> tuple[Tensor, Tensor]:
    """Resize image and mask to a given longer side, centre them, and pad to a square with 0 and void.

    If ``square`` is smaller than the image, return a window of that size. ``u`` gives its position as a fraction of the
    free space from the left and from the top.
    """
    Image, side = pillow(), square or longer
    scale = longer / max(image.size)
    width, height = (max(round(edge * scale), 1) for edge in image.size)
    corner = tuple(
        (side - edge) // 2 if edge <= side else -int(share * (edge - side + 1))
        for edge, share in zip((width, height), u, strict=False)
    )
    canvas, labels = Image.new("RGB", (side, side)), Image.new("L", (side, side), void)
    canvas.paste(image.resize((width, height), Image.Resampling.BILINEAR), corner)
    labels.paste(mask.resize((width, height), Image.Resampling.NEAREST), corner)
    return to_bytes(canvas), to_bytes(labels)


def to_bytes(image: Any) -> Tensor:
    """Convert a Pillow image to a uint8 tensor ``(C, H, W)`` or, for one channel, ``(H, W)``."""
    pixels = torch.from_numpy(np.array(image))
    return pixels.permute(2, 0, 1).contiguous() if pixels.ndim == 3 else pixels


def resized_crop(width: int, height: int, scale: float, u: Tensor) -> tuple[float, float, float, float]:
    """Return a box (left, top, right, bottom) of at least ``scale`` times the area, with aspect ratio 3:4 to 4:3."""
    area, ratio, across, down = u.tolist()
    area = (scale + (1 - scale) * area) * width * height
    ratio = math.exp((2 * ratio - 1) * math.log(4 / 3))
    wide, tall = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
    left, top = across * (width - wide), down * (height - tall)
    return left, top, left + wide, top + tall


def cut_square(size: int, scale: float, image: Any, target: int, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the centre square of an image or, in training with ``scale`` < 1, a random resized crop (bicubic).

    If training uses such crops, evaluation uses the centre 7/8, so that objects have the same apparent size as in
    training.
    """
    if scale >= 1:
        return to_bytes(fit(image, size)), torch.tensor(target)
    width, height = image.size
    if u is None:
        side = min(width, height) * MIDDLE
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    else:
        box = resized_crop(width, height, scale, u)
    return to_bytes(image.resize((size, size), pillow().Resampling.BICUBIC, box=box)), torch.tensor(target)


def cut_scene(size: int, void: int, image: Any, mask: Any, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return an image and its label map: a random crop in training, otherwise the whole image padded to a square.

    The longer side is resized to 1.25 times the crop size in training and to 15/16 of it otherwise (640, 512 and 480 in
    the protocol of Liu et al., CVPR 2022). The image is padded with black, the map with void.
    """
    if u is None:
        return letterbox(image, mask, size * 480 // 512, void)
    return letterbox(image, mask, size * 640 // 512, void, square=size, u=u.tolist())
