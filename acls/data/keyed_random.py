"""Random numbers that belong to a sample, not to a moment.

A number is a hash of the seed, the epoch, the sample's number and which of its numbers is asked for. So an image is
augmented the same way whatever batch, process or worker it falls to, and however often training was interrupted;
there is no generator whose state could be lost.
"""

import torch
from torch import Tensor

from acls.hashing import STEP, mix64, shifted, signed


def uniform(seed: int, epoch: int, index: Tensor, draws: int) -> Tensor:
    """Numbers in [0, 1), ``(len(index), draws)``, float32: those of each sample in each epoch."""
    hashed = _hash(_fold(seed, epoch), index)
    streams = torch.arange(1, draws + 1) * STEP
    return shifted(mix64(hashed[:, None] + streams), 40).float() / (1 << 24)


def seed_of(*keys: int) -> int:
    """A seed for a generator, from any number of keys; below 2**63."""
    return int(shifted(_fold(*keys), 1))


def generator(*keys: int) -> torch.Generator:
    """A generator that depends on the keys only."""
    return torch.Generator().manual_seed(seed_of(*keys))


def _fold(*keys: int) -> Tensor:
    folded = torch.zeros((), dtype=torch.int64)
    for key in keys:
        folded = _hash(folded, torch.tensor(signed(key)))
    return folded


def _hash(key: Tensor, numbers: Tensor) -> Tensor:
    return mix64(numbers * STEP + key + STEP)
