"""Tails of the usual distributions, intervals of a share, and p-values put together: all that needs no data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from statistics import NormalDist

import torch

LEVEL = 0.95
"""Confidence level of every interval unless said otherwise."""


def normal_tail(z: float) -> float:
    """P(|Z| > z) of a standard normal Z; 1 for z <= 0.

    >>> round(normal_tail(1.96), 3)
    0.05
    """
    return math.erfc(max(z, 0.0) / math.sqrt(2))


def normal_quantile(level: float = LEVEL) -> float:
    """What |Z| stays below with this probability: 1.96 for 0.95."""
    return NormalDist().inv_cdf((1 + level) / 2)


def student_tail(t: float, freedom: int) -> float:
    """P(|T| > t) of Student's t: with θ = arctan(t / √ν) a finite sum of powers of cos θ.

    >>> round(student_tail(12.706, 1), 4)
    0.05
    """
    theta = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(theta), math.cos(theta)
    term, total = (cosine if freedom % 2 else 1.0), 0.0
    for power in range(freedom % 2, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    within = 2 / math.pi * (theta + sine * total) if freedom % 2 else sine * total
    return min(1.0, max(0.0, 1 - within))


def last(holds: Callable[[float], bool], high: float) -> float:
    """The last number from 0 to ``high`` for which a condition holds that ends somewhere between them: by bisection."""
    low = 0.0
    while high - low > 1e-9 * (1 + high):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


@lru_cache(maxsize=4096)
def student_quantile(freedom: int, level: float = LEVEL) -> float:
    """What |T| stays below with this probability: 12.706 for one degree of freedom and 0.95."""
    if freedom > 1000:
        return normal_quantile(level)
    return last(lambda t: student_tail(t, freedom) > 1 - level, 1e6 if freedom < 10 else 100.0)


def bias_aware_quantile(unknown: float, level: float = LEVEL) -> float:
    """How many standard deviations both ends of an interval need, if its estimate has a bias that is not known.

    The bias may be anything in a range of ``unknown`` standard deviations, and each end allows for the worst. It cannot
    be the worst for both, so z with P(Z > z) + P(Z > z + unknown) = 1 - level will do: 1.96 where the bias is known,
    1.645 where the range is wide (Imbens and Manski, Econometrica 2004).

    >>> round(bias_aware_quantile(0.0), 3), round(bias_aware_quantile(5.0), 3)
    (1.96, 1.645)
    """
    return last(lambda z: normal_tail(z) + normal_tail(z + unknown) > 2 * (1 - level), normal_quantile(level))


def chi_squared_tail(statistic: float, freedom: float) -> float:
    """P(X > statistic) of a chi-squared X; 1 without a degree of freedom."""
    if freedom <= 0:
        return 1.0
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def wilson(share: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval of a share of n independent samples (Wilson, JASA 1927): right at 0 and 1, too.

    >>> tuple(round(end, 3) for end in wilson(1.0, 50))
    (0.929, 1.0)
    """
    z2 = normal_quantile(level) ** 2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    margin = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, min(middle - margin, share)), min(1.0, max(middle + margin, share))


def cauchy(p_values: Iterable[float], weights: Iterable[float] | None = None) -> float:
    """One p-value from several, however they depend on each other (Liu & Xie, JASA 2020), by default weighted alike.

    One above 0.95 counts as 0.95: a test that finds less than chance would must not outweigh the others.

    >>> round(cauchy([0.01, 0.8]), 3)
    0.02
    """
    kept = [min(max(p, 1e-15), 0.95) for p in p_values]
    shares = [1.0] * len(kept) if weights is None else list(weights)
    tangents = (share * math.tan((0.5 - p) * math.pi) for p, share in zip(kept, shares, strict=True))
    mean = math.fsum(tangents) / math.fsum(shares)
    return min(1.0, max(0.0, 0.5 - math.atan(mean) / math.pi))


def for_many(comparisons: int, level: float = LEVEL) -> float:
    """The level of each of several intervals that all hold together (Bonferroni).

    Such an interval excludes 0 exactly where the p-value, multiplied by the number of comparisons, is below 0.05.

    >>> round(for_many(5), 4)
    0.99
    """
    return 1 - (1 - level) / max(comparisons, 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for being many: rejecting those below α errs at all with probability α at most (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
