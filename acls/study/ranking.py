"""Which method is best, and whether that is more than chance.

Two things make a difference of two methods uncertain: which samples the test set happens to hold, and which networks
the seeds happen to give. A difference counts as significant only where both say so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from acls.errors import InputError
from acls.metrics import Blocks
from acls.metrics.blocks import check_same_units
from acls.metrics.catalogue import metric as metric_of
from acls.metrics.intervals import REPLICATES, holm, poisson_weights
from acls.study.store import Row

LEVEL = 0.05
_SAME = 1e-9
"""A deviation that is such a part of the mean is the rounding of floating-point numbers."""
_NORMAL = 1.96
_RESAMPLES = 400
"""A standard deviation estimated from these is itself off by about 1 / √(2 · 400) = 3.5 %."""


@dataclass(frozen=True)
class Ranked:
    """The best method by a metric, among those after the same post-hoc method, against the next."""

    metric: str
    posthoc: str
    best: str
    next: str
    difference: float
    """Of their means over the seeds that both have."""
    p: float
    """Of there being no difference, corrected by Holm for all that were ranked together."""

    @property
    def significant(self) -> bool:
        return self.p < LEVEL


def rank(rows: Sequence[Row], metrics: Sequence[str], blocks: Callable[[Row], Blocks]) -> list[Ranked]:
    """Find the best by each metric and test it against the next, on the same samples and seed by seed.

    ``blocks`` counts the predictions behind a row. A metric that some method lacks is left out, and so is one that
    cannot be resampled.
    """
    counted: dict[tuple[str, str], dict[int, Blocks]] = {}
    tests: dict[tuple[str, str, str], dict[str, float]] = {}
    found = []
    for posthoc in dict.fromkeys(row.posthoc for row in rows):
        by_method: dict[str, dict[int, Row]] = {}
        for row in rows:
            if row.posthoc == posthoc:
                by_method.setdefault(row.method, {})[row.seed] = row
        for metric in metrics:
            values = {method: _values(seeds, metric) for method, seeds in by_method.items()}
            if len(values) < 2 or not all(values.values()):
                continue
            sign = metric_of(metric).sign
            best, second = sorted(values, key=lambda method: sign * statistics.fmean(values[method].values()))[:2]
            common = sorted(values[best].keys() & values[second].keys())
            if not common:
                continue
            if (posthoc, best, second) not in tests:
                for method in (best, second):
                    if (posthoc, method) not in counted:
                        counted[posthoc, method] = {seed: blocks(row) for seed, row in by_method[method].items()}
                pair = [[counted[posthoc, method][seed] for seed in common] for method in (best, second)]
                tests[posthoc, best, second] = swap_test(*pair, smooth="smece" in metrics)
            if metric not in tests[posthoc, best, second]:
                continue
            differences = [values[best][seed] - values[second][seed] for seed in common]
            step = _resolution(metric, by_method[best][common[0]])
            p = max(tests[posthoc, best, second][metric], t_test(differences, resolution=step))
            found.append(Ranked(metric, posthoc, best, second, statistics.fmean(differences), p))
    adjusted = holm([one.p for one in found])
    return [replace(one, p=p) for one, p in zip(found, adjusted, strict=True)]


@torch.no_grad()
def swap_test(
    first: Sequence[Blocks],
    second: Sequence[Blocks],
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
    smooth: bool = True,
) -> dict[str, float]:
    """For each metric the p-value of no difference, on average over seeds, for which the samples are to blame.

    If two methods were alike, swapping their predictions of random blocks of samples, in all seeds at once, would often
    give as large a mean difference. With one seed it is the test of `acls.metrics.intervals.paired`. SmoothECE takes
    longer than all other metrics, so it is left out where nobody wants it.
    """
    random = torch.Generator().manual_seed(seed + 1)
    stay = (torch.rand(replicates, first[0].cells.shape[0], generator=random) < 0.5).double()
    go = 1 - stay
    observed: dict[str, torch.Tensor] = {}
    swapped: dict[str, torch.Tensor] = {}
    for one, other in zip(first, second, strict=True):
        check_same_units(one, other)
        _add(observed, one.totals().metrics(smooth=smooth), other.totals().metrics(smooth=smooth))
        mine, theirs = one.totals(stay) + other.totals(go), other.totals(stay) + one.totals(go)
        _add(swapped, mine.metrics(smooth=smooth), theirs.metrics(smooth=smooth))
    result = {}
    for name, value in observed.items():
        as_large = int((swapped[name].abs() >= value.abs() - 1e-15).sum())
        result[name] = (as_large + 1) / (len(swapped[name]) + 1)
    return result


def t_test(differences: Sequence[float], *, resolution: float = 0.0) -> float:
    """The p-value of a mean of 0 for which the seeds are to blame (paired t-test, two-sided); 0 for a single seed.

    Of a metric that is a count, ``resolution`` is the step from one count to the next. Few seeds often give the same
    difference of counts, which does not mean that all seeds would, so the deviation is taken to be at least what
    rounding alone brings about: resolution · √(1/12 + 1/12), as two counts are rounded. Without this, two seeds would
    find a difference where there is none up to 13 times in 100. Differences that coincide although the metric has no
    steps tell nothing about other seeds: 1.

    >>> round(t_test([1.0, 2.0, 3.0]), 4)  # t = 3.46 with 2 degrees of freedom
    0.0742
    """
    n = len(differences)
    if n < 2:
        return 0.0
    mean, deviation = statistics.fmean(differences), _deviation(differences, resolution)
    if deviation <= _SAME * abs(mean):
        return 1.0
    return _beyond(abs(mean) / deviation * math.sqrt(n), n - 1)


@dataclass(frozen=True)
class Difference:
    """A metric of one method minus the other's, on average over the seeds that both have, with its 95 % interval."""

    value: float
    low: float
    high: float
    seeds: int

    @property
    def sign(self) -> int:
        """-1 or 1 where the interval leaves no doubt, else 0."""
        return (self.low > 0) - (self.high < 0)


@dataclass(frozen=True)
class Resampled:
    """The metrics of one network on resampled test samples; networks on the same samples have the same resamples."""

    metrics: Mapping[str, torch.Tensor]
    """``(replicates,)`` each."""
    units: torch.Tensor
    """Samples in each block."""


@torch.no_grad()
def resample(blocks: Blocks) -> Resampled:
    """Resample what was counted, SmoothECE apart."""
    weights = poisson_weights(blocks, _RESAMPLES, 0)
    return Resampled(blocks.totals(weights).metrics(smooth=False), blocks.cells[..., 0].sum(1))


def difference(
    first: Sequence[Row], second: Sequence[Row], metric: str, resampled: Callable[[Row], Resampled] | None = None
) -> Difference | None:
    """Compare the rows of two methods, seed by seed and on the same samples; None where they have no seed in common.

    Two things make the difference uncertain, and their variances are added: the seeds, of which the spread of the
    differences tells (Student's t), and the test samples, of which resampling them for both methods and all seeds at
    once tells. Without ``resampled``, which resamples the predictions behind a row, the rows' own intervals stand in
    for the latter, as if each method had been tested on samples of its own: wider. With one seed the first is not
    known, so the interval is without end.
    """
    mine, theirs = ({row.seed: row for row in rows} for rows in (first, second))
    values = [_values(rows, metric) for rows in (mine, theirs)]
    common = sorted(values[0].keys() & values[1].keys())
    if not common:
        return None
    differences = [values[0][seed] - values[1][seed] for seed in common]
    mean, n = statistics.fmean(differences), len(differences)
    if n == 1:
        return Difference(mean, -math.inf, math.inf, n)
    deviation = _deviation(differences, _resolution(metric, mine[common[0]]))
    by_seeds = _student(n - 1) * deviation / math.sqrt(n)
    pairs = [(mine[seed], theirs[seed]) for seed in common]
    by_samples = _own_deviation(pairs, metric) if resampled is None else _paired_deviation(pairs, metric, resampled)
    margin = math.hypot(by_seeds, _NORMAL * by_samples)
    return Difference(mean, mean - margin, mean + margin, n)


def _resolution(metric: str, row: Row) -> float:
    """The step from one value that a metric can have to the next; 0 where it can have any."""
    return 1 / row.n if metric_of(metric).kind == "share" else 0.0


def _deviation(differences: Sequence[float], resolution: float) -> float:
    """The standard deviation over seeds, or that of rounding two counts where it is larger: see `t_test`."""
    return max(statistics.stdev(differences), resolution / math.sqrt(6))


def _own_deviation(pairs: Sequence[tuple[Row, Row]], metric: str) -> float:
    ends = [(row.metrics[metric]["low"], row.metrics[metric]["high"]) for pair in pairs for row in pair]
    widths = [(high - low) / (2 * _NORMAL) for low, high in ends if low is not None and high is not None]
    return math.sqrt(2 * statistics.fmean(width**2 for width in widths)) if widths else 0.0


def _paired_deviation(pairs: Sequence[tuple[Row, Row]], metric: str, resampled: Callable[[Row], Resampled]) -> float:
    """The standard deviation, over resampled test samples, of the mean difference; 0 for what has no resamples."""
    total = torch.zeros(())
    for pair in pairs:
        one, other = map(resampled, pair)
        if not torch.equal(one.units, other.units):
            raise InputError(f"{pair[0].method} and {pair[1].method} were not tested on the same samples")
        if metric not in one.metrics or metric not in other.metrics:
            return 0.0
        total = total + one.metrics[metric] - other.metrics[metric]
    return float(total.std()) / len(pairs)


def _student(freedom: int) -> float:
    """What |Student's t| exceeds 5 times in 100, by bisection: 12.706 for one degree of freedom."""
    low, high = _NORMAL, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > LEVEL else (low, middle)
    return high


def _beyond(t: float, freedom: int) -> float:
    """The probability that |Student's t| exceeds t: with θ = arctan(t / √ν) a finite sum of powers of cos θ."""
    theta = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(theta), math.cos(theta)
    term, total = (cosine if freedom % 2 else 1.0), 0.0
    for power in range(freedom % 2, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    within = 2 / math.pi * (theta + sine * total) if freedom % 2 else sine * total
    return min(1.0, max(0.0, 1 - within))


def _values(seeds: Mapping[int, Row], metric: str) -> dict[int, float]:
    found = {seed: row.metrics[metric]["value"] for seed, row in seeds.items() if metric in row.metrics}
    return {seed: value for seed, value in found.items() if value is not None}


def _add(sums: dict[str, torch.Tensor], mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    for name in mine:
        if name in theirs:
            sums[name] = sums.get(name, torch.zeros(())) + (mine[name] - theirs[name])
