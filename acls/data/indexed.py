"""Add sample indices to any data set, for losses that store values per sample, and sample only what a loss keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from acls.errors import InputError
from acls.losses import Loss


class Indexed(Dataset[Any]):
    """A data set that adds the index to each item: ``(x, y)`` becomes ``(x, y, index)``, a dict gets ``"index"``.

    Apply this wrapper last, around any `Subset`: the index counts from 0 in the data set that the loader uses.

    >>> Indexed([("image", 3)])[0]
    ('image', 3, 0)
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        item = self.dataset[i]
        if isinstance(item, Mapping):
            return {**item, "index": i}
        if isinstance(item, tuple | list):
            return (*item, i)
        raise InputError(f"expected samples that are tuples (x, y) or dictionaries, got {type(item).__name__}")


class KeptSampler(Sampler[int]):
    """A sampler of the training samples that the loss keeps (`Loss.keep_mask`), in a new random order each epoch.

    A loss that does not prune samples keeps all of ``dataset``.
    """

    def __init__(self, dataset: Any, loss: Loss, *, seed: int = 0) -> None:
        self.total, self.loss, self.seed, self.epoch = len(dataset), loss, seed, 0

    def __len__(self) -> int:
        mask = self.loss.keep_mask()
        return self.total if mask is None else int(mask.sum())

    def __iter__(self) -> Iterator[int]:
        mask = self.loss.keep_mask()
        numbers = torch.arange(self.total) if mask is None else mask.cpu().nonzero()[:, 0]
        order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(self.seed + self.epoch))
        self.epoch += 1
        return iter(numbers[order].tolist())
