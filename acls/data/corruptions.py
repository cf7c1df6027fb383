"""Image corruptions in five severities, similar to the effects of a camera, a network or the weather.

Each corruption takes a batch of images ``(N, C, H, W)`` in 0..1 and returns such a batch. Labels do not change, so
corruptions also work for segmentation. The result for an image depends only on the seed and its number, not on its
batch. The corruptions follow the idea of Hendrycks and Dietterich (ICLR 2019), but the strengths are our own, and
lengths grow with the image size. Do not compare the numbers with those of ImageNet-C.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from acls.data.augment import denormalised, normalised
from acls.data.dataset import SampleSource
from acls.data.images import to_bytes
from acls.data.keyed_random import generator, uniform
from acls.errors import InputError, suggest
from acls.vision import pillow

SEVERITIES = (1, 2, 3, 4, 5)
REFERENCE_SIDE = 32
"""Lengths in pixels are defined for images with this shorter side, and grow with the square root of the side."""

Corrupt = Callable[[Tensor, Tensor], Tensor]
"""A function of images and their numbers in the data set that returns the corrupted images."""


@dataclass(frozen=True)
class Corruption:
    """One corruption at one severity, 1 to 5."""

    name: str
    severity: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in CORRUPTIONS:
            raise InputError(f"there is no corruption {self.name!r}{suggest(self.name, CORRUPTIONS)}")
        if self.severity not in SEVERITIES:
            raise InputError(f"expected a severity from 1 to 5, got {self.severity}")

    def __call__(self, x: Tensor, index: Tensor) -> Tensor:
        """Corrupt images in 0..1 whose numbers in the data set are ``index``."""
        if x.ndim != 4:
            raise InputError(f"expected images (N, C, H, W) to corrupt, got inputs of shape {tuple(x.shape)}")
        drawn = (self.seed, index) if self.name in RANDOM else ()
        return CORRUPTIONS[self.name](x, self.severity - 1, *drawn).clamp(0, 1)


def noise(x: Tensor, level: int, seed: int, index: Tensor) -> Tensor:
    """Add Gaussian noise, as from a sensor in the dark."""
    drawn = [torch.randn(x.shape[1:], generator=generator(seed, 0, i)) for i in index.tolist()]
    return x + (0.04, 0.08, 0.12, 0.18, 0.26)[level] * torch.stack(drawn).to(x)


def shot(x: Tensor, level: int, seed: int, index: Tensor) -> Tensor:
    """Add shot noise, which is stronger with fewer photons."""
    photons = (60, 25, 12, 5, 3)[level]
    samples = zip(x, index.tolist(), strict=True)
    return torch.stack([torch.poisson(one * photons, generator=generator(seed, 1, i)) for one, i in samples]) / photons


def impulse(x: Tensor, level: int, seed: int, index: Tensor) -> Tensor:
    """Set random pixels to black or white, as bit errors do."""
    chance = (0.01, 0.03, 0.06, 0.1, 0.17)[level]
    u = torch.stack([torch.rand(1, *x.shape[2:], generator=generator(seed, 2, i)) for i in index.tolist()])
    return torch.where(u < chance / 2, 0.0, torch.where(u < chance, 1.0, x))


def blur(x: Tensor, level: int) -> Tensor:
    """Apply Gaussian blur, as in an image that is out of focus."""
    sigma = (0.6, 0.9, 1.2, 1.7, 2.4)[level] * _scale(x)
    reach = max(1, round(3 * sigma))
    taps = torch.exp(-(torch.arange(-reach, reach + 1, dtype=x.dtype) ** 2) / (2 * sigma**2))
    return _along(_along(x, taps / taps.sum(), -1), taps / taps.sum(), -2)


def motion(x: Tensor, level: int, seed: int, index: Tensor) -> Tensor:
    """Apply motion blur, horizontal in half of the images and vertical in the others."""
    half = (1.5, 2.5, 3.5, 5.0, 7.0)[level] * _scale(x)
    reach = max(1, math.ceil(half))
    taps = (half + 0.5 - torch.arange(-reach, reach + 1, dtype=x.dtype).abs()).clamp(0, 1)
    sideways = uniform(seed, 3, index.cpu(), 1)[:, 0, None, None, None] < 0.5
    return torch.where(sideways, _along(x, taps / taps.sum(), -1), _along(x, taps / taps.sum(), -2))


def bright(x: Tensor, level: int) -> Tensor:
    """Make the images too bright."""
    return x + (0.1, 0.2, 0.3, 0.4, 0.5)[level]


def dark(x: Tensor, level: int) -> Tensor:
    """Make the images too dark."""
    return x * (0.8, 0.6, 0.45, 0.3, 0.2)[level]


def contrast(x: Tensor, level: int) -> Tensor:
    """Reduce the contrast, as fog does."""
    mean = x.mean((1, 2, 3), keepdim=True)
    return (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[level] + mean


def saturation(x: Tensor, level: int) -> Tensor:
    """Reduce the saturation of the colours; gray images do not change."""
    gray = x.mean(1, keepdim=True)
    return (x - gray) * (0.7, 0.5, 0.3, 0.15, 0.0)[level] + gray


def pixelate(x: Tensor, level: int) -> Tensor:
    """Make the pixels larger, as in a camera with a lower resolution."""
    height, width = (max(1, round(side * (0.75, 0.6, 0.45, 0.35, 0.25)[level])) for side in x.shape[-2:])
    return F.interpolate(F.interpolate(x, (height, width), mode="area"), x.shape[-2:], mode="nearest")


def jpeg(x: Tensor, level: int) -> Tensor:
    """Apply strong JPEG compression."""
    Image = pillow()
    packed = []
    for image in (x * 255).round().to(torch.uint8).cpu().movedim(1, -1).squeeze(-1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=(80, 60, 40, 20, 10)[level])
        packed.append(to_bytes(Image.open(buffer)))
    return torch.stack(packed).reshape(x.shape).to(x) / 255


CORRUPTIONS: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (noise, shot, impulse, motion, blur, bright, dark, contrast, saturation, pixelate, jpeg)
}
"""Every corruption by its name."""
RANDOM = ("noise", "shot", "impulse", "motion")
"""Corruptions that use random numbers, which depend on the seed and the number of each image."""


@dataclass(frozen=True)
class Corrupted:
    """A source whose images are corrupted before they are normalised."""

    source: SampleSource
    corrupt: Corrupt
    normalise: str
    """The data set whose statistics normalise the images."""

    def __len__(self) -> int:
        return len(self.source)

    def take(self, numbers: Tensor, key: tuple[int, int] | None, index: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.source.take(numbers, key, index)
        return normalised(self.corrupt(denormalised(x, self.normalise), index), self.normalise), y


def _scale(x: Tensor) -> float:
    return float((min(x.shape[-2:]) / REFERENCE_SIDE) ** 0.5)


def _along(x: Tensor, taps: Tensor, axis: int) -> Tensor:
    """Convolve the rows or columns; the border pixels are repeated as padding."""
    reach = len(taps) // 2
    padding = (reach, reach, 0, 0) if axis == -1 else (0, 0, reach, reach)
    kernel = taps.to(x).unsqueeze(-3 - axis).expand(x.shape[1], 1, -1, -1)
    return F.conv2d(F.pad(x, padding, mode="replicate"), kernel, groups=x.shape[1])
