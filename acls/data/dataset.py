"""Where samples are kept, and the parts that training, validation and test take of them.

An item is ``(x, y, index)``: the input, its class id or label map, and its number inside the part.
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
    """The samples of one batch, by their numbers in the part, and the epoch that their augmentation belongs to."""

    samples: Tensor
    epoch: int
    weight: float = 1.0
    """This process's share of a batch that several share, over the mean share: 1 where all have as many samples."""


class Source(Protocol):
    """Samples that can be had by number."""

    def __len__(self) -> int: ...

    def take(self, numbers: Tensor, key: tuple[int, int] | None, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets; augmented by the key (seed, epoch) and each sample's index, plain where it is None."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Decoded samples as two tensors; a batch is taken and augmented at once."""

    x: Tensor
    """``(N, ...)``: bytes for images in 0..255, else float32 as the network gets it."""
    y: Tensor
    """``(N,)`` class ids, or ``(N, H, W)`` label maps."""
    augment: Augment = field(default_factory=Augment)
    truth: Tensor | None = None
    """``(N, K, *D)``: the probabilities that the labels were drawn from, where they are known."""

    def __len__(self) -> int:
        return len(self.x)

    def take(self, numbers: Tensor, key: tuple[int, int] | None, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.augment(self.x[numbers], self.y[numbers], key, index)


@dataclass(frozen=True)
class OnDisk:
    """Samples that are read and decoded when they are asked for, then augmented as those in memory are."""

    count: int
    read: Callable[[int], tuple[Any, Any]]
    """The sample as it is: a Pillow image, and its class id or label map."""
    cut: Callable[[Any, Any, Tensor | None], tuple[Tensor, Tensor]]
    """Cuts it to the size of the network's input, at random where four numbers in [0, 1) come with it."""
    augment: Augment = field(default_factory=Augment)

    def __len__(self) -> int:
        return self.count

    def take(self, numbers: Tensor, key: tuple[int, int] | None, index: Tensor) -> tuple[Tensor, Tensor]:
        places: Any = [None] * len(numbers) if key is None else crop_draws(*key, index)
        items = [self.cut(*self.read(number), place) for number, place in zip(numbers.tolist(), places, strict=True)]
        xs, ys = zip(*items, strict=True)
        return self.augment(torch.stack(xs), torch.stack(ys), key, index)


class Part(Dataset[SampleBatch]):
    """Some samples of a source, numbered from 0: a training, validation or test part."""

    def __init__(self, source: Source, chosen: Tensor | None = None, *, seed: int | None = None) -> None:
        """Take the samples with the numbers ``chosen``, all by default; with a seed they are augmented."""
        self.source, self.seed = source, seed
        self.chosen = torch.arange(len(source)) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, i: int) -> SampleBatch:
        x, y, index = self.__getitems__(Draw(torch.tensor([i]), 0))
        return x[0], y[0], index[0]

    def __getitems__(self, draw: Draw) -> SampleBatch:
        """A batch at once; torch's DataLoader calls this with what its batch sampler gives."""
        key = None if self.seed is None else (self.seed, draw.epoch)
        x, y = self.source.take(self.chosen[draw.samples], key, draw.samples)
        return x, y, draw.samples

    def __getstate__(self) -> dict[str, Any]:
        return {"guard": Guard()} | vars(self)  # the guard is unpickled first

    def plain(self) -> Part:
        """The same samples without augmentation."""
        return Part(self.source, self.chosen)

    @property
    def truth(self) -> Tensor | None:
        """The probabilities that the labels were drawn from, where they are known."""
        known: Tensor | None = getattr(self.source, "truth", None)
        return None if known is None else known[self.chosen]


@dataclass(frozen=True)
class Data:
    """A data set in three parts."""

    train: Part
    val: Part
    test: Part
    names: tuple[str, ...]
    """The classes' names, in the order of their ids."""
    void: int = IGNORE_INDEX
    """The label of positions that count for nothing."""
    segmentation: bool = False

    @property
    def n_classes(self) -> int:
        return len(self.names)

    def fingerprint(self) -> dict[str, str]:
        """Per part, a hash of its first, middle and last sample, and of all labels where they are in memory."""
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
        """The parts by name."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def splits(self) -> dict[str, Tensor]:
        """Each part's samples by their numbers in the data set."""
        return {name: part.chosen for name, part in self.parts().items()}


def batches(part: Part, draws: Sequence[Draw], *, workers: int = 0, pin: bool = False) -> Iterator[SampleBatch]:
    """The batches of the draws, in their order, read by ``workers`` processes beside this one (0: by this one)."""
    if workers == 0:
        yield from map(part.__getitems__, draws)
        return
    sampler: Any = draws  # typed for lists of numbers, but handed as it is to __getitems__
    # As torch itself does on Linux, also where this process was spawned: a spawned worker imports torch anew.
    how = "fork" if sys.platform == "linux" else None
    loader = DataLoader(
        part,
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=tuple,  # a batch is one already
        pin_memory=pin,
        multiprocessing_context=how,
        worker_init_fn=partial(_end_if_orphaned, os.getpid()),
    )
    try:
        yield from loader
    except InputError as error:
        # A worker's error comes with its traceback as text; the last line is the message for the user.
        raise InputError(str(error).strip().splitlines()[-1].split("InputError: ", 1)[-1]) from error


def in_order(part: Part, batch: int, *, first: int = 0, step: int = 1) -> list[Draw]:
    """Draws of every ``step``-th sample from ``first`` on: a process's shard, neither padded nor repeated."""
    numbers = torch.arange(first, max(len(part), first), step)
    return [Draw(numbers[start : start + batch], 0) for start in range(0, len(numbers), batch)]


def _end_if_orphaned(parent: int, _worker: int) -> None:
    """End a worker whose parent was killed before it began: torch would watch over another process, and never end."""
    if os.getppid() != parent:
        os._exit(1)
