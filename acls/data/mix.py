"""Mixes of the images of a batch, with soft labels.

CutMix: Yun et al., ICCV 2019. Mixup: Zhang et al., ICLR 2018.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from acls.data import DataOptions
from acls.errors import InputError


def mix(
    x: Tensor, y: Tensor, options: DataOptions, n_classes: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mix a batch as the options say: images, and labels ``(N, K)`` that hold each class's share of the image.

    The batch stays as it is, with its class ids, in the share ``1 - mix_prob`` of the cases.
    """
    if options.mix == "none" or torch.rand((), generator=generator) >= options.mix_prob:
        return x, y
    if y.ndim > 1:
        raise InputError(f"{options.mix} mixes the labels of whole images: use data.mix none for segmentation")
    kept = _beta(options.mix_alpha, generator)
    partner = torch.randperm(x.shape[0], generator=generator).to(x.device)
    if options.mix == "mixup":
        mixed = kept * x + (1 - kept) * x[partner]
    else:
        mixed, kept = cutmix(x, partner, kept, generator)
    own = F.one_hot(y, n_classes).to(x.dtype)
    return mixed, kept * own + (1 - kept) * own[partner]


def cutmix(x: Tensor, partner: Tensor, kept: float, generator: torch.Generator) -> tuple[Tensor, float]:
    """Paste a box of each image's partner; also return the share of the image that is really kept.

    The box has the share ``1 - kept`` of the area and its centre anywhere, so that part of it may fall outside.
    """
    height, width = x.shape[-2:]
    side = math.sqrt(1 - kept)
    tall, wide = int(height * side), int(width * side)
    row = int(torch.randint(height, (), generator=generator))
    column = int(torch.randint(width, (), generator=generator))
    top, bottom = max(row - tall // 2, 0), min(row + tall // 2, height)
    left, right = max(column - wide // 2, 0), min(column + wide // 2, width)
    mixed = x.clone()
    mixed[..., top:bottom, left:right] = x[partner][..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def _beta(alpha: float, generator: torch.Generator) -> float:
    # torch's own Beta distribution takes no generator.
    first, second = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=generator).tolist()
    return first / (first + second) if first + second else 0.5
