"""Tails and quantiles of common distributions, intervals of a proportion, and combined or corrected p-values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist

import torch

LEVEL = 0.95
"""The default confidence level of intervals."""


def normal_tail(z: float) -> float:
    """Return P(|Z| > z) for a standard normal Z; 1 for z <= 0.

    >>> round(normal_tail(1.96), 3)
    0.05
    """
    return math.erfc(max(z, 0.0) / math.sqrt(2))


def normal_quantile(level: float = LEVEL) -> float:
    """Return the value that |Z| stays below with this probability: 1.96 for 0.95."""
    return NormalDist().inv_cdf((1 + level) / 2)


def student_tail(t: float, freedom: int) -> float:
    """Return P(|T| > t) for Student's t: a finite sum of powers of cos θ, where θ = arctan(t / √ν).

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
    """Return by bisection the largest number from 0 to ``high`` up to which a condition holds."""
    low = 0.0
    while high - low > 1e-9 * (1 + high):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


@lru_cache(maxsize=4096)
def student_quantile(freedom: int, level: float = LEVEL) -> float:
    """Return the value that |T| stays below with this probability: 12.706 for one degree of freedom and 0.95."""
    if freedom > 1000:
        return normal_quantile(level)
    return last(lambda t: student_tail(t, freedom) > 1 - level, 1e6 if freedom < 10 else 100.0)


def bias_aware_quantile(unknown: float, level: float = LEVEL) -> float:
    """Return the half-width, in standard deviations, of an interval whose estimate has an unknown bias.

    The bias can have any value in a range of ``unknown`` standard deviations, and each end allows for the worst case.
    The worst case cannot hold for both ends, so z with P(Z > z) + P(Z > z + unknown) = 1 - level is enough: 1.96 if the
    bias is known, 1.645 if the range is wide (Imbens and Manski, Econometrica 2004).

    >>> round(bias_aware_quantile(0.0), 3), round(bias_aware_quantile(5.0), 3)
    (1.96, 1.645)
    """
    return last(lambda z: normal_tail(z) + normal_tail(z + unknown) > 2 * (1 - level), normal_quantile(level))


def chi_squared_tail(statistic: float, freedom: float) -> float:
    """Return P(X > statistic) for a chi-squared X; 1 if there are no degrees of freedom."""
    if freedom <= 0:
        return 1.0
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def wilson(share: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Return Wilson's interval for a proportion of n independent samples (JASA 1927). It is also valid at 0 and 1.

    >>> tuple(round(end, 3) for end in wilson(1.0, 50))
    (0.929, 1.0)
    """
    z2 = normal_quantile(level) ** 2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    margin = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, min(middle - margin, share)), min(1.0, max(middle + margin, share))


def cauchy(p_values: Iterable[float], weights: Iterable[float] | None = None) -> float:
    """Combine p-values of tests with any dependence (Liu & Xie, JASA 2020). The default weights are equal.

    A p-value above 0.95 counts as 0.95, so that one very large p-value does not outweigh the others.

    >>> round(cauchy([0.01, 0.8]), 3)
    0.021
    """
    kept = [min(max(p, 1e-15), 0.95) for p in p_values]
    shares = [1.0] * len(kept) if weights is None else list(weights)
    tangents = (share * math.tan((0.5 - p) * math.pi) for p, share in zip(kept, shares, strict=True))
    mean = math.fsum(tangents) / math.fsum(shares)
    return min(1.0, max(0.0, 0.5 - math.atan(mean) / math.pi))


def for_many(comparisons: int, level: float = LEVEL) -> float:
    """Return the level of each of several intervals such that all of them hold simultaneously (Bonferroni).

    Such an interval excludes 0 exactly if the p-value, multiplied by the number of comparisons, is below 0.05.

    >>> round(for_many(5), 4)
    0.99
    """
    return 1 - (1 - level) / max(comparisons, 1)


def p_of_many(p: float, comparisons: int) -> float:
    """Return the p-value of one of several comparisons, corrected for their number (Bonferroni): see `for_many`."""
    return min(1.0, comparisons * p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple tests. The probability of any false rejection is at most α (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = (p_of_many(p_values[place], len(order) - rank) for rank, place in enumerate(order))
    adjusted = dict(zip(order, accumulate(corrected, max), strict=True))
    return [adjusted[place] for place in range(len(order))]
