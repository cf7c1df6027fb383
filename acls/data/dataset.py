"""Sources of samples, and the training, validation and test parts that are drawn from them.

An item is ``(x, y, index)``: the input, its class id or label map, and its position inside the part.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from acls.data.augment import Augment, crop_draws
from acls.errors import InputError
from acls.shapes import IGNORE_INDEX
from acls.vision import Guard

SampleBatch = tuple[Tensor, Tensor, Tensor]


class Draw(NamedTuple):
    """The positions in the part of the samples of one batch, and the epoch, which determines their augmentation."""

    samples: Tensor
    epoch: int
    weight: float = 1.0
    """Samples of this process divided by the mean over all processes: 1 if every process has the same number."""


class SampleSource(Protocol):
    """Samples that can be read by number."""

    def __len__(self) -> int: ...

    def take(self, numbers: Tensor, key: tuple[int, int] | None, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets; the key (seed, epoch) and each index set the augmentation, None turns it off."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Decoded samples in two tensors; a whole batch is selected and augmented in one operation."""

    x: Tensor
    """``(N, ...)``: uint8 for images with values in 0..255, otherwise float32 exactly as the network receives it."""
    y: Tensor
    """``(N,)`` class ids, or ``(N, H, W)`` label maps."""
    augment: Augment = field(default_factory=Augment)
    truth: Tensor | None = None
    """``(N, K, *D)``: the probabilities from which the labels were drawn, if they are known."""

    def __len__(self) -> int:
        return len(self.x)

    def take(self, numbers: Tensor, key: tuple[int, int] | None, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.augment(self.x[numbers], self.y[numbers], key, index)


@dataclass(frozen=True)
class OnDisk:
    """Samples that are read and decoded on demand, then augmented in the same way as samples in memory."""

    items: Sequence[Any]
    read: Callable[[Any], tuple[Any, Any]]
    """Returns the unchanged sample of an item: a Pillow image, and its class id or label map."""
    cut: Callable[[Any, Any, Tensor | None], tuple[Tensor, Tensor]]
    """Crops the sample to the input size of the network; the crop is random if four numbers in [0, 1) are passed."""
    augment: Augment = field(default_factory=Augment)

    def __len__(self) -> int:
        return len(self.items)

    def take(self, numbers: Tensor, key: tuple[int, int] | None, index: Tensor) -> tuple[Tensor, Tensor]:
        places: Any = [None] * len(numbers) if key is None else crop_draws(*key, index)
        chosen = zip((self.items[number] for number in numbers.tolist()), places, strict=True)
        xs, ys = zip(*(self.cut(*self.read(item), place) for item, place in chosen), strict=True)
        return self.augment(torch.stack(xs), torch.stack(ys), key, index)


class Part(Dataset[SampleBatch]):
    """A training, validation or test part: some samples of a source, numbered from 0."""

    def __init__(self, source: SampleSource, chosen: Tensor | None = None, *, seed: int | None = None) -> None:
        """Select the samples with the numbers ``chosen`` (default: all); if a seed is given, they are augmented."""
        self.source, self.seed = source, seed
        self.chosen = torch.arange(len(source)) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, i: int) -> SampleBatch:
        x, y, index = self.__getitems__(Draw(torch.tensor([i]), 0))
        return x[0], y[0], index[0]

    def __getitems__(self, draw: Draw) -> SampleBatch:
        """Return a whole batch; the DataLoader of torch calls this method with each item of its batch sampler."""
        key = None if self.seed is None else (self.seed, draw.epoch)
        x, y = self.source.take(self.chosen[draw.samples], key, draw.samples)
        return x, y, draw.samples

    def __getstate__(self) -> dict[str, Any]:
        return {"guard": Guard()} | vars(self)  # the guard is unpickled first

    def plain(self) -> Part:
        """Return a part with the same samples, without augmentation."""
        return Part(self.source, self.chosen)

    @property
    def truth(self) -> Tensor | None:
        """The probabilities from which the labels were drawn, or None if they are not known."""
        known: Tensor | None = getattr(self.source, "truth", None)
        return None if known is None else known[self.chosen]


@dataclass(frozen=True)
class Data:
    """A data set with a training, a validation and a test part."""

    train: Part
    val: Part
    test: Part
    names: tuple[str, ...]
    """The names of the classes, in the order of their ids."""
    void: int = IGNORE_INDEX
    """The label of positions that are ignored."""
    segmentation: bool = False

    @property
    def n_classes(self) -> int:
        return len(self.names)

    def fingerprint(self) -> dict[str, str]:
        """Return a hash per part of its first, middle and last sample, and of all labels if they are in memory."""
        found = {}
        for name, part in self.parts().items():
            digest = hashlib.sha256(str(len(part)).encode())
            numbers = sorted({0, len(part) // 2, len(part) - 1}) if len(part) else []
            tensors = [tensor for i in numbers for tensor in part.plain()[i][:2]]
            tensors += [part.source.y[part.chosen]] if isinstance(part.source, InMemory) else []
            for tensor in tensors:
                digest.update(tensor.contiguous().numpy().tobytes())
            found[name] = digest.hexdigest()[:32]
        return found

    def parts(self) -> dict[str, Part]:
        """Return the train, val and test parts by name."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def splits(self) -> dict[str, Tensor]:
        """Return, for each part, the numbers of its samples in the data set."""
        return {name: part.chosen for name, part in self.parts().items()}


def batches(part: Part, draws: Sequence[Draw], *, workers: int = 0, pin: bool = False) -> Iterator[SampleBatch]:
    """Yield one batch per draw, in order, read by ``workers`` additional processes (0: by this process)."""
    if workers == 0:
        yield from map(part.__getitems__, draws)
        return
    loader = DataLoader(
        part,
        batch_sampler=draws,  # type: ignore[arg-type]  # each draw is passed unchanged to __getitems__
        num_workers=workers,
        collate_fn=tuple,  # the items are batches already
        pin_memory=pin,
        # Fork is torch's default on Linux. Use it in a spawned process too: a spawned worker imports torch again.
        multiprocessing_context="fork" if sys.platform == "linux" else None,
        worker_init_fn=partial(_end_if_orphaned, os.getpid()),
    )
    try:
        yield from loader
    except InputError as error:
        # The error of a worker contains its traceback as text; the last line is the message for the user.
        raise InputError(str(error).strip().splitlines()[-1].split("InputError: ", 1)[-1]) from error


def in_order(part: Part, batch: int, *, first: int = 0, step: int = 1) -> list[Draw]:
    """Return draws of every ``step``-th sample from ``first`` on: the shard of a process, without padding."""
    numbers = torch.arange(first, max(len(part), first), step)
    return [Draw(numbers[start : start + batch], 0) for start in range(0, len(numbers), batch)]


def _end_if_orphaned(parent: int, _worker: int) -> None:
    """Exit if the parent was killed before this worker started: torch would wait for another process forever."""
    if os.getppid() != parent:
        os._exit(1)
