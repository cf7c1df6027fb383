"""Augmentation of whole batches of equally large images, on tensors: no loop over images, no global generator."""

from __future__ import annotations

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
}


@dataclass(frozen=True)
class Augment:
    """Random crop after padding, flip, brightness and contrast, erasing; each off at its default."""

    pad: int = 0
    flip: bool = False
    jitter: float = 0.0
    erase: float = 0.0

    @staticmethod
    def of(options: DataOptions) -> Augment:
        return Augment(pad=options.pad, flip=options.flip, jitter=options.jitter, erase=options.erase)

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

    def colour(self, x: Tensor, u: Tensor) -> Tensor:
        """Change brightness, then contrast, of images in 0..1, each of half of the images; ``u``: four numbers."""
        if not self.jitter:
            return x
        strength = 1 + self.jitter * (2 * u[:, :2] - 1) * (u[:, 2:4] < 0.5)
        brightness, contrast = strength[:, :, None, None, None].unbind(1)
        x = (x * brightness).clamp(0, 1)
        mean = x.mean(dim=(1, 2, 3), keepdim=True)
        return ((x - mean) * contrast + mean).clamp(0, 1)

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
        """Augment and normalise a batch: what happens to a sample depends on the seed, the epoch and its index only."""
        u = uniform(seed, epoch, index, 12)
        x, y = self.geometry(x, y, u[:, :3], void)
        x = normalise.scaled(x)
        x = normalise(self.colour(x, u[:, 3:7]))
        seeds = [seed_of(seed, epoch, i) for i in index.tolist()] if self.erase else []
        return self.erased(x, u[:, 7:12], seeds), y


@dataclass(frozen=True)
class Normalise:
    """Bytes to 0..1, then each channel to mean 0 and deviation 1 by a data set's statistics."""

    name: str = "none"

    def scaled(self, x: Tensor) -> Tensor:
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


def crop(x: Tensor, top: Tensor, left: Tensor, pad: int, fill: int) -> Tensor:
    """Cut from each padded image the window of its own size whose corner is at (top, left)."""
    height, width = x.shape[-2:]
    padded = F.pad(x, (pad, pad, pad, pad), value=fill)
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    sample = torch.arange(x.shape[0])[:, None, None, None]
    channel = torch.arange(x.shape[1])[None, :, None, None]
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]
