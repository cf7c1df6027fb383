"""Random numbers that depend on the sample, not on the order in which samples are processed.

Each number is a hash of the seed, the epoch, the index of the sample and the index of the draw. An image is therefore
augmented in the same way in every batch, process and worker, and also after training was interrupted. There is no
generator whose state must be saved.
"""

from functools import reduce

import torch
from torch import Tensor

from acls.hashing import STEP, mix64, shifted, signed


def uniform(seed: int, epoch: int, index: Tensor, draws: int) -> Tensor:
    """Return float32 numbers in [0, 1) of shape ``(len(index), draws)`` for these samples in this epoch."""
    hashed = _hash(_fold(seed, epoch), index)
    streams = torch.arange(1, draws + 1) * STEP
    return shifted(mix64(hashed[:, None] + streams), 40).float() / (1 << 24)


def seed_of(*keys: int) -> int:
    """Return a seed below 2**63 for a generator, computed from any number of keys."""
    return int(shifted(_fold(*keys), 1))


def generator(*keys: int) -> torch.Generator:
    """Return a generator that depends only on the keys."""
    return torch.Generator().manual_seed(seed_of(*keys))


def _fold(*keys: int) -> Tensor:
    return reduce(_hash, (torch.tensor(signed(key)) for key in keys), torch.zeros((), dtype=torch.int64))


def _hash(key: Tensor, numbers: Tensor) -> Tensor:
    return mix64(numbers * STEP + key + STEP)
