"""The interval of a share."""

from __future__ import annotations

import math

_Z = 1.959964  # of a 95 % interval


def wilson(share: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share seen in n samples (Wilson 1927): within 0..1, also for a share of 0 or 1.

    >>> [round(end, 4) for end in wilson(0.0, 10)]
    [0.0, 0.2775]
    """
    share = min(max(share, 0.0), 1.0)  # sums of shared hits may round beyond
    center = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n))
    return max(0.0, min(center - half, share)), min(1.0, max(center + half, share))
