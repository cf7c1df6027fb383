"""How an image of any size is cut to the size of the network's input; `acls.data.augment` does the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acls.data.augment import MIDDLE, resized_crop
from acls.data.files import fit, letterbox, to_bytes
from acls.vision import pillow


@dataclass(frozen=True)
class Square:
    """The middle square of an image or, for training with a ``scale`` below 1, a random resized crop (bicubic).

    Evaluation beside such crops sees the middle 7/8, so that things appear as large as they do in training.
    """

    size: int
    scale: float

    def __call__(self, image: Any, target: int, u: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.scale >= 1:
            return to_bytes(fit(image, self.size)), torch.tensor(target)
        width, height = image.size
        if u is None:
            side = min(width, height) * MIDDLE
            left, top = (width - side) / 2, (height - side) / 2
            box = (left, top, left + side, top + side)
        else:
            box = resized_crop(width, height, self.scale, u)
        resized = image.resize((self.size, self.size), pillow().Resampling.BICUBIC, box=box)
        return to_bytes(resized), torch.tensor(target)


@dataclass(frozen=True)
class Scene:
    """An image and its label map: for training a random crop, else the whole image padded to a square.

    The longer side is 1.25 times the crop's for training and 15/16 of it else (640, 512 and 480 in the protocol of Liu
    et al., CVPR 2022). Padding is black in the image and void in the map.
    """

    size: int
    void: int

    def __call__(self, image: Any, mask: Any, u: Tensor | None) -> tuple[Tensor, Tensor]:
        if u is None:
            image, mask = letterbox(image, mask, self.size * 480 // 512, self.void)
        else:
            image, mask = letterbox(image, mask, self.size * 640 // 512, self.void, square=self.size, u=u.tolist())
        return to_bytes(image), to_bytes(mask)
