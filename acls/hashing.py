"""A 64-bit hash function, used for random numbers per sample and for fingerprints of rows and labels.

Integers are int64 tensors modulo 2**64, so a hash value is the same on every device and machine.
"""

import torch
from torch import Tensor

STEP = 0x9E3779B97F4A7C15 - 2**64
"""2**64 divided by the golden ratio: its multiples are spread evenly."""
_CACHED = 2**18  # elements per block
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def mix64(state: Tensor) -> Tensor:
    """Apply SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014): each input bit affects each output bit."""
    state = (state ^ shifted(state, 30)) * _FIRST
    state = (state ^ shifted(state, 27)) * _SECOND
    return state ^ shifted(state, 31)


def codes(rows: Tensor, labels: Tensor) -> Tensor:
    """Return an int64 hash of each row ``(m, K)`` and its label, which depends only on their bits."""
    bits = rows.contiguous().view(torch.int64 if rows.dtype == torch.float64 else torch.int32)
    columns = torch.arange(1, rows.shape[1] + 1, device=rows.device) * STEP | 1
    mixed = labels * STEP
    size = max(1, _CACHED // rows.shape[1])
    for part, own in zip(torch.split(bits, size), torch.split(mixed, size), strict=True):
        terms = part.long() * columns
        own += (terms ^ (terms >> 29)).sum(1)
    return mix64(mixed)


def shifted(state: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros, as for unsigned integers."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def signed(value: int) -> int:
    """Return the int64 that equals an integer modulo 2**64."""
    return (value + 2**63) % 2**64 - 2**63
