"""Augmentation of batches of equally large images, on tensors, wherever the images come from.

What happens to a sample depends on the seed, the epoch and its index only: there is no generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from acls.data import DataOptions
from acls.data.keyed import generator, seed_of, uniform

# Mean and standard deviation of the channels of images in 0..1.
STATISTICS = {
    "none": ((0.0,), (1.0,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "lite": ((127 / 255,) * 3, (128 / 255,) * 3),
}
HUE, SATURATION, VALUE = 20 / 180, 30 / 255, 20 / 255
"""The largest shifts of the colour rule ``hsv``, as shares of each channel's range."""
MIDDLE = 7 / 8
"""Share of the shorter side that evaluation sees where training takes random resized crops."""
_FLIP, _COLOUR, _ERASE, _CROP, _DRAWS = slice(0, 3), slice(3, 10), slice(10, 15), slice(15, 19), 19


@dataclass(frozen=True)
class Augment:
    """Random crop, flip, colour and erasing of a batch; each off at its default."""

    pad: int = 0
    flip: bool = False
    jitter: float = 0.0
    colour: str = "factors"
    erase: float = 0.0

    @staticmethod
    def of(options: DataOptions) -> Augment:
        """What the settings of a data set say."""
        return Augment(options.pad, options.flip, options.jitter, options.colour, options.erase)

    def geometry(self, x: Tensor, y: Tensor, u: Tensor, void: int) -> tuple[Tensor, Tensor]:
        """Crop and flip images and, alike, their label maps, in the dtype they came in; ``u``: three numbers each."""
        if self.pad:
            top, left = ((u[:, :2] * (2 * self.pad + 1)).long()).unbind(1)
            x = crop(x, top, left, self.pad, 0)
            y = crop(y[:, None], top, left, self.pad, void)[:, 0] if y.ndim == 3 else y
        if self.flip:
            flipped = u[:, 2] < 0.5
            x = torch.where(flipped[:, None, None, None], x.flip(-1), x)
            y = torch.where(flipped[:, None, None], y.flip(-1), y) if y.ndim == 3 else y
        return x, y

    def colours(self, x: Tensor, u: Tensor) -> Tensor:
        """Change the colours of images in 0..1; ``u``: seven numbers each.

        ``factors`` multiplies brightness, contrast and saturation of every image by factors in 1 - jitter..1 + jitter.
        ``hsv`` adds up to jitter to the brightness of half of the images and multiplies their contrast by such a
        factor, and shifts hue, saturation and value of another half, as the segmentation protocol does.
        """
        if not self.jitter:
            return x
        change = (2 * u - 1)[:, :, None, None, None]
        if self.colour == "factors":
            for kind, factor in enumerate((1 + self.jitter * change[:, :3]).unbind(1)):
                # Towards black, towards the mean grey of the image, towards the grey of the pixel.
                base = (x.new_zeros(()), _grey(x).mean((1, 2, 3), keepdim=True), _grey(x))[kind]
                x = (base + (x - base) * factor).clamp(0, 1)
            return x
        jittered, shifted = (u[:, 5:7] < 0.5)[:, :, None, None, None].unbind(1)
        x = (x * (1 + self.jitter * change[:, 0] * jittered) + self.jitter * change[:, 1] * jittered).clamp(0, 1)
        limits = torch.tensor([HUE, SATURATION, VALUE])[:, None, None]
        return torch.where(shifted, shift_hsv(x, change[:, 2:5, 0] * limits), x) if x.shape[1] == 3 else x

    def erased(self, x: Tensor, u: Tensor, seeds: list[int]) -> Tensor:
        """Replace a box of 2 % to 33 % of a normalised image by noise; ``u``: five numbers each."""
        if not self.erase:
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
        for i in (u[:, 0] < self.erase).nonzero()[:, 0].tolist():
            noise = torch.randn(x.shape[1:], generator=generator(seeds[i]))
            erased[i] = torch.where(box[i], noise, x[i])
        return erased

    def __call__(
        self, x: Tensor, y: Tensor, *, normalise: Normalise, seed: int, epoch: int, index: Tensor, void: int
    ) -> tuple[Tensor, Tensor]:
        """Augment and normalise a batch."""
        u = uniform(seed, epoch, index, _DRAWS)
        x, y = self.geometry(x, y, u[:, _FLIP], void)
        x = normalise.scaled(x)
        x = normalise(self.colours(x, u[:, _COLOUR]))
        seeds = [seed_of(seed, epoch, i) for i in index.tolist()] if self.erase else []
        return self.erased(x, u[:, _ERASE], seeds), y


@dataclass(frozen=True)
class Normalise:
    """Bytes to 0..1, then each channel to mean 0 and deviation 1 by a data set's statistics."""

    name: str = "none"

    def scaled(self, x: Tensor) -> Tensor:
        """Bytes as floats in 0..1; floats as they are."""
        return x.float().div_(255) if x.dtype == torch.uint8 else x

    def __call__(self, x: Tensor) -> Tensor:
        mean, deviation = self._statistics()
        return x if self.name == "none" else (x - mean) / deviation

    def undo(self, x: Tensor) -> Tensor:
        """The images in 0..1 that were normalised."""
        mean, deviation = self._statistics()
        return x if self.name == "none" else x * deviation + mean

    def _statistics(self) -> tuple[Tensor, Tensor]:
        mean, deviation = (torch.tensor(part)[:, None, None] for part in STATISTICS[self.name])
        return mean, deviation


def crop_draws(seed: int, epoch: int, index: Tensor) -> Tensor:
    """The four numbers of each sample that place a random crop of a larger image."""
    return uniform(seed, epoch, index, _DRAWS)[:, _CROP]


def resized_crop(width: int, height: int, scale: float, u: Tensor) -> tuple[float, float, float, float]:
    """A box (left, top, right, bottom) of an image: at least the share ``scale`` of its area, of aspect 3:4 to 4:3."""
    area, ratio, across, down = u.tolist()
    area = (scale + (1 - scale) * area) * width * height
    ratio = math.exp((2 * ratio - 1) * math.log(4 / 3))
    wide, tall = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
    left, top = across * (width - wide), down * (height - tall)
    return left, top, left + wide, top + tall


def crop(x: Tensor, top: Tensor, left: Tensor, pad: int, fill: int) -> Tensor:
    """Cut from each padded image the window of its own size whose corner is at (top, left)."""
    height, width = x.shape[-2:]
    padded = F.pad(x, (pad, pad, pad, pad), value=fill)
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    sample = torch.arange(x.shape[0])[:, None, None, None]
    channel = torch.arange(x.shape[1])[None, :, None, None]
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def shift_hsv(x: Tensor, shift: Tensor) -> Tensor:
    """Add to hue (turning round), saturation and value of RGB images in 0..1; ``shift`` is ``(N, 3, 1, 1)``."""
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
