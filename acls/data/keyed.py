"""Random numbers that belong to a sample, not to a moment.

A number is a hash of the seed, the epoch, the sample's number and which of its numbers is asked for. So an image is
augmented the same way whatever batch, process or worker it falls to, and however often training was interrupted;
there is no generator whose state could be lost.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_STEP = np.uint64(0x9E3779B97F4A7C15)


def uniform(seed: int, epoch: int, index: Tensor, draws: int) -> Tensor:
    """Numbers in [0, 1), ``(len(index), draws)``, float32: those of each sample in each epoch."""
    hashed = _hash(_fold(seed, epoch), index.numpy())
    streams = np.arange(1, draws + 1, dtype=np.uint64) * _STEP
    bits = _mix(hashed[:, None] + streams) >> np.uint64(40)
    return torch.from_numpy(bits.astype(np.float32) / np.float32(1 << 24))


def seed_of(*keys: int) -> int:
    """A seed for a generator, from any number of keys; below 2**63."""
    folded = _fold(*keys)
    return int(folded) >> 1


def generator(*keys: int) -> torch.Generator:
    """A generator that depends on the keys only."""
    return torch.Generator().manual_seed(seed_of(*keys))


def _fold(*keys: int) -> np.uint64:
    folded = np.zeros(1, dtype=np.uint64)
    for key in keys:
        folded = _hash(folded[0], np.array([key]))
    return np.uint64(folded[0])


def _hash(key: np.uint64, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        return _mix(numbers.astype(np.uint64) * _STEP + key + _STEP)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every input bit sways every output bit."""
    with np.errstate(over="ignore"):
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
