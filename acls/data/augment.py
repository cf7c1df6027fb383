"""Augmentation of batches of images of equal size, on tensors, for every source of images.

The augmentation of a sample depends only on the seed, the epoch and its index. There is no generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from acls.data import DataOptions
from acls.data.keyed_random import generator, seed_of, uniform
from acls.errors import InputError
from acls.shapes import IGNORE_INDEX

# Mean and standard deviation of the channels of images in 0..1.
STATISTICS = {
    "none": ((0.0,), (1.0,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "lite": ((127 / 255,) * 3, (128 / 255,) * 3),
}
HUE, SATURATION, VALUE = 20 / 180, 30 / 255, 20 / 255
"""The largest shifts of the colour rule ``hsv``, as fractions of the range of each channel."""
_FLIP, _COLOUR, _ERASE, _CROP, _DRAWS = slice(0, 3), slice(3, 10), slice(10, 15), slice(15, 19), 19


def scaled(x: Tensor) -> Tensor:
    """Convert uint8 to floats in 0..1; return floats unchanged."""
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def normalised(x: Tensor, name: str) -> Tensor:
    """Normalise each channel of images in 0..1 to mean 0 and deviation 1, with the statistics of a data set."""
    mean, deviation = _statistics(name)
    return x if name == "none" else (x - mean) / deviation


def denormalised(x: Tensor, name: str) -> Tensor:
    """Return the images in 0..1 from before the normalisation."""
    mean, deviation = _statistics(name)
    return x if name == "none" else x * deviation + mean


def _statistics(name: str) -> tuple[Tensor, Tensor]:
    mean, deviation = (torch.tensor(part)[:, None, None] for part in STATISTICS[name])
    return mean, deviation


@dataclass(frozen=True)
class Augment:
    """Augmentation of a batch (random crop, flip, colour change and erasing) followed by normalisation."""

    options: DataOptions = field(default_factory=DataOptions)
    void: int = IGNORE_INDEX
    """The label of the pixels that padding adds to a label map."""

    def geometry(self, x: Tensor, y: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Crop and flip images and their label maps in the same way, in their own dtype; ``u`` is ``(N, 3)``."""
        if pad := self.options.pad:
            top, left = ((u[:, :2] * (2 * pad + 1)).long()).unbind(1)
            x = crop(x, top, left, pad, 0)
            y = crop(y[:, None], top, left, pad, self.void)[:, 0] if y.ndim == 3 else y
        if self.options.flip:
            flipped = u[:, 2] < 0.5
            x = torch.where(flipped[:, None, None, None], x.flip(-1), x)
            y = torch.where(flipped[:, None, None], y.flip(-1), y) if y.ndim == 3 else y
        return x, y

    def colours(self, x: Tensor, u: Tensor) -> Tensor:
        """Change the colours of images in 0..1; ``u`` is ``(N, 7)``.

        ``factors`` multiplies brightness, contrast and saturation of every image by factors in 1 - jitter..1 + jitter.
        ``hsv`` adds at most jitter to the brightness of half of the images and multiplies their contrast by such a
        factor. It shifts hue, saturation and value of another half, as in the segmentation protocol.
        """
        jitter = self.options.jitter
        if not jitter:
            return x
        change = (2 * u - 1)[:, :, None, None, None]
        if self.options.colour == "factors":
            for kind, factor in enumerate((1 + jitter * change[:, :3]).unbind(1)):
                # Towards black, towards the mean grey of the image, towards the grey of the pixel.
                base = (x.new_zeros(()), _grey(x).mean((1, 2, 3), keepdim=True), _grey(x))[kind]
                x = (base + (x - base) * factor).clamp(0, 1)
            return x
        jittered, shifted = (u[:, 5:7] < 0.5)[:, :, None, None, None].unbind(1)
        x = (x * (1 + jitter * change[:, 0] * jittered) + jitter * change[:, 1] * jittered).clamp(0, 1)
        limits = torch.tensor([HUE, SATURATION, VALUE])[:, None, None]
        return torch.where(shifted, shift_hsv(x, change[:, 2:5, 0] * limits), x) if x.shape[1] == 3 else x

    def erased(self, x: Tensor, u: Tensor, key: tuple[int, int], index: Tensor) -> Tensor:
        """Replace a box of 2 % to 33 % of a normalised image by noise; ``u`` is ``(N, 5)``."""
        if not self.options.erase:
            return x
        height, width = x.shape[-2:]
        area = (0.02 + 0.31 * u[:, 1]) * height * width
        aspect = torch.exp((2 * u[:, 2] - 1) * 1.2039728)  # log-uniform in 0.3..3.33
        tall = (area * aspect).sqrt().clamp(max=height)
        wide = (area / aspect).sqrt().clamp(max=width)
        top, left = u[:, 3] * (height - tall), u[:, 4] * (width - wide)
        rows, columns = torch.arange(height), torch.arange(width)
        down = (rows >= top[:, None]) & (rows < (top + tall)[:, None])
        across = (columns >= left[:, None]) & (columns < (left + wide)[:, None])
        box = down[:, :, None] & across[:, None, :]
        erased = x.clone()
        for i in (u[:, 0] < self.options.erase).nonzero()[:, 0].tolist():
            noise = torch.randn(x.shape[1:], generator=generator(seed_of(*key, int(index[i]))))
            erased[i] = torch.where(box[i], noise, x[i])
        return erased

    def __call__(self, x: Tensor, y: Tensor, key: tuple[int, int] | None, index: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise a batch; if there is a key (seed, epoch), augment it first."""
        if key is None:
            return normalised(scaled(x), self.options.normalise), y.long()
        u = uniform(*key, index, _DRAWS)
        x, y = self.geometry(x, y, u[:, _FLIP])
        x = normalised(self.colours(scaled(x), u[:, _COLOUR]), self.options.normalise)
        return self.erased(x, u[:, _ERASE], key, index), y.long()


def crop_draws(seed: int, epoch: int, index: Tensor) -> Tensor:
    """Return four random numbers per sample, which set the position of a random crop from a larger image."""
    return uniform(seed, epoch, index, _DRAWS)[:, _CROP]


def crop(x: Tensor, top: Tensor, left: Tensor, pad: int, fill: int) -> Tensor:
    """Pad each image and crop the window of the original size whose corner is at (top, left)."""
    height, width = x.shape[-2:]
    padded = F.pad(x, (pad, pad, pad, pad), value=fill)
    return padded.unfold(2, height, 1).unfold(3, width, 1)[torch.arange(len(x)), :, top, left]


def shift_hsv(x: Tensor, shift: Tensor) -> Tensor:
    """Shift hue (cyclic), saturation and value of RGB images in 0..1; ``shift`` is ``(N, 3, 1, 1)``."""
    value, chroma = x.amax(1), x.amax(1) - x.amin(1)
    red, green, blue = x.unbind(1)
    span = chroma.clamp(min=1e-12)
    hue = torch.where(
        value == red,
        (green - blue) / span,
        torch.where(value == green, (blue - red) / span + 2, (red - green) / span + 4),
    )
    hue = hue + 6 * shift[:, 0]
    saturation = (chroma / value.clamp(min=1e-12) + shift[:, 1]).clamp(0, 1)
    value = (value + shift[:, 2]).clamp(0, 1)
    parts = [(n + hue).remainder(6) for n in (5, 3, 1)]
    return torch.stack([value * (1 - saturation * torch.minimum(k, 4 - k).clamp(0, 1)) for k in parts], 1)


def _grey(x: Tensor) -> Tensor:
    weights = x.new_tensor([0.299, 0.587, 0.114]) if x.shape[1] == 3 else x.new_full((x.shape[1],), 1 / x.shape[1])
    return torch.einsum("nchw,c->nhw", x, weights)[:, None]


def mix(x: Tensor, y: Tensor, options: DataOptions, n_classes: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mix the images of a batch; the labels become ``(N, K)`` and hold the fraction of each class in the image.

    CutMix: Yun et al., ICCV 2019. Mixup: Zhang et al., ICLR 2018.

    With probability ``1 - mix_prob`` the batch and its class ids are returned unchanged.
    """
    if options.mix == "none" or torch.rand((), generator=random) >= options.mix_prob:
        return x, y
    if y.ndim > 1:
        raise InputError(f"{options.mix} mixes the labels of whole images: use data.mix none for segmentation")
    kept = _beta(options.mix_alpha, random)
    partner = torch.randperm(x.shape[0], generator=random).to(x.device)
    if options.mix == "mixup":
        mixed = kept * x + (1 - kept) * x[partner]
    else:
        mixed, kept = cutmix(x, partner, kept, random)
    own = F.one_hot(y, n_classes).to(x.dtype)
    return mixed, kept * own + (1 - kept) * own[partner]


def cutmix(x: Tensor, partner: Tensor, kept: float, random: torch.Generator) -> tuple[Tensor, float]:
    """Paste a box from the partner of each image; also return the fraction of the image that was really kept.

    The box has ``1 - kept`` of the area. Its centre can be anywhere, so part of the box may be outside the image.
    """
    height, width = x.shape[-2:]
    side = math.sqrt(1 - kept)
    tall, wide = int(height * side), int(width * side)
    row = int(torch.randint(height, (), generator=random))
    column = int(torch.randint(width, (), generator=random))
    top, bottom = max(row - tall // 2, 0), min(row + tall // 2, height)
    left, right = max(column - wide // 2, 0), min(column + wide // 2, width)
    mixed = x.clone()
    mixed[..., top:bottom, left:right] = x[partner][..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def _beta(alpha: float, random: torch.Generator) -> float:
    # The Beta distribution of torch does not accept a generator.
    first, second = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=random).tolist()
    return first / (first + second) if first + second else 0.5
