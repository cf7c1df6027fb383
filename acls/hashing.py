"""The one 64-bit mixer: random numbers that belong to a sample, and fingerprints of rows and labels.

Integers are int64 tensors taken modulo 2**64, so a value is the same on every device and machine.
"""

from __future__ import annotations

from torch import Tensor

STEP = 0x9E3779B97F4A7C15 - 2**64
"""2**64 divided by the golden ratio: multiples of it are spread evenly."""
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def mix64(state: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): each input bit affects each output bit."""
    state = (state ^ shifted(state, 30)) * _FIRST
    state = (state ^ shifted(state, 27)) * _SECOND
    return state ^ shifted(state, 31)


def shifted(state: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros, as unsigned integers do."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def signed(value: int) -> int:
    """The int64 that is equal to an integer modulo 2**64."""
    return (value + 2**63) % 2**64 - 2**63
