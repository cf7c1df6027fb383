"""What a number is worth: noise floor, intervals, paired comparison, tests of calibration, correction for many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acls.errors import InputError
from acls.metrics.bins import bin_of
from acls.metrics.blocks import Blocks, Totals, cell_metrics, check_same_units
from acls.metrics.cells import Cells
from acls.metrics.suite import Suite

REPLICATES = 1000
LEVEL = 0.95
_SIMULATED = 1024  # cells that a simulation works on
_ERRORS = ("ece", "mce", "rmsce", "aece", "ks", "smece", "classwise_ece")


@dataclass(frozen=True)
class Floor:
    """What a calibration error would be if the model were perfectly calibrated: its mean and the range it stays in."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """The difference of a metric, first model minus second, its interval, and the p-value of there being none."""

    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Test:
    """A test statistic and the probability of one at least as extreme if the model is calibrated."""

    statistic: float
    p: float


@torch.no_grad()
def noise_floor(
    suite: Suite, *, replicates: int = REPLICATES, level: float = LEVEL, seed: int = 0, smooth: bool = True
) -> dict[str, Floor]:
    """What each calibration error would be for a calibrated model with these confidences and as many samples.

    Each replicate keeps the confidences and draws every hit anew with its confidence as probability. Samples of nearly
    the same confidence are drawn together from a binomial, so the cost does not depend on n. SmoothECE, which takes
    longer than all others, is left out if it is not wanted.
    """
    if suite.n == 0:
        raise InputError("there is no noise floor without samples")
    random = torch.Generator().manual_seed(seed)
    cells, bin_of_cell = _simulation_cells(suite)
    count, confidence = (part.expand(replicates, -1) for part in (cells.count, cells.confidence))
    right = torch.binomial(count, (confidence / count).clamp(0, 1), generator=random)
    found = cell_metrics(Cells(count, confidence, right), bin_of_cell, suite.bins.bins, smooth=smooth)
    if suite.classwise is not None:
        found["classwise_ece"] = _classwise_floor(suite, replicates, random)
    result = {}
    for name in _ERRORS:
        if name in found:
            low, high = _quantiles(found[name], level)
            result[name] = Floor(float(found[name].mean()), low, high)
    return result


@torch.no_grad()
def bootstrap(
    blocks: Blocks,
    *,
    around: Mapping[str, float] | None = None,
    replicates: int = REPLICATES,
    level: float = LEVEL,
    seed: int = 0,
    smooth: bool = True,
) -> dict[str, Interval]:
    """Confidence intervals of all metrics: a Poisson bootstrap, every block counted a random number of times.

    An average distance from calibration comes out too large, by noise, and that of a resample, with noise added to
    noise, larger still: the middle of the replicates (the usual percentile interval) can lie wholly above the truth. So
    replicates only tell how far an estimate is from what it estimates: the interval is [2v - q_high, 2v - q_low]. Where
    noise alone would often show as large a calibration error, it reaches down to 0.

    ``around`` gives the values where they are known better than from the blocks' coarse cells: a ``Suite.summary()``.
    SmoothECE, which takes longer than all others, is left out if it is not wanted.
    """
    _check_units(blocks, "an interval")
    weights = poisson_weights(blocks, replicates, seed)
    center, resampled = blocks.totals(), blocks.totals(weights)
    replicated, noise = (some.metrics(smooth=smooth) for some in (resampled, resampled.noise_around(center)))
    result = {}
    for name, at_one in center.metrics(smooth=smooth).items():
        plain = float(at_one)
        value = plain if around is None else around.get(name, plain)
        low, high = _quantiles(replicated[name], level)
        ends = [value + plain - high, value + plain - low]
        if name in _ERRORS and value <= _quantiles(noise[name], level)[1]:
            ends[0] = 0.0
        least, most = (0.0, math.inf) if name == "nll" else (0.0, 2.0) if name == "brier" else (0.0, 1.0)
        result[name] = Interval(value, *(min(max(end, least), most) for end in ends))
    return result


@torch.no_grad()
def paired(
    first: Blocks, second: Blocks, *, replicates: int = REPLICATES, level: float = LEVEL, seed: int = 0
) -> dict[str, Comparison]:
    """Compare two models on the same samples: the difference of each metric, its interval, and a p-value.

    Both are resampled together, so what makes a sample hard for both cancels. The p-value is that of a permutation
    test: if the models were alike, swapping their predictions at random, block by block, would often give a difference
    as large.
    """
    check_same_units(first, second)
    _check_units(first, "a comparison")
    weights = poisson_weights(first, replicates, seed)
    resampled = _differences(first.totals(weights), second.totals(weights))
    random = torch.Generator().manual_seed(seed + 1)
    stay = (torch.rand(replicates, weights.shape[1], generator=random) < 0.5).to(weights)
    go = 1 - stay
    swapped = _differences(first.totals(stay) + second.totals(go), second.totals(stay) + first.totals(go))
    result = {}
    for name, difference in _differences(first.totals(), second.totals()).items():
        value = float(difference)
        if not math.isfinite(value):
            # One sample with an infinite NLL makes it so, whichever model it is swapped to: chance is not ruled out.
            result[name] = Comparison(value, math.nan, math.nan, 1.0)
            continue
        low, high = _quantiles(resampled[name], level)
        # The observed difference is one of those that swapping could give, hence the ones.
        as_large = int((swapped[name].abs() >= abs(value) - 1e-15).sum())
        result[name] = Comparison(value, 2 * value - high, 2 * value - low, (as_large + 1) / (replicates + 1))
    return result


@torch.no_grad()
def calibration_tests(suite: Suite) -> dict[str, Test]:
    """Is it calibrated at all: two tests of "each prediction is right with its confidence as probability".

    ``spiegelhalter``: Σ (hit - conf) (1 - 2 conf) over its standard deviation, normal if calibrated (Spiegelhalter,
    Statistics in Medicine 1986); strong against over- and underconfidence. ``ks``: the largest cumulative residual over
    the standard deviation of the whole, distributed as the largest |Brownian motion| (Arrieta-Ibarra et al., JMLR
    2022).
    """
    cells = suite.confidences.cells()
    confidence = (cells.confidence / cells.count.clamp(min=1)).clamp(0, 1)
    variance = cells.count * confidence * (1 - confidence)
    tilt = 1 - 2 * confidence
    z = _ratio(float((-cells.residual * tilt).sum()), math.sqrt(float((tilt**2 * variance).sum())))
    reach = float(cells.reached.abs().max()) if suite.n else 0.0
    x = _ratio(reach, math.sqrt(float(variance.sum())))
    return {"spiegelhalter": Test(z, math.erfc(abs(z) / math.sqrt(2))), "ks": Test(x, _beyond_brownian(x))}


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for being many: rejecting those below α errs at all with probability α at most (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _simulation_cells(suite: Suite) -> tuple[Cells, Tensor]:
    """The samples in a few thousand cells of near equal mass, none across a bin's edge, with the bin of each."""
    cells = suite.confidences.cells()
    count, confidence, right = (part[0].cpu() for part in (cells.count, cells.confidence, cells.right))
    bins = bin_of(confidence / count.clamp(min=1), suite.bins.bins)
    mass = ((count.cumsum(0) - count) * (_SIMULATED / count.sum())).long()
    group = torch.unique_consecutive(bins * (_SIMULATED + 1) + mass, return_inverse=True)[1]
    together = [torch.bincount(group, weights=part)[None] for part in (count, confidence, right)]
    bin_of_cell = torch.zeros(together[0].shape[1], dtype=torch.long)
    bin_of_cell[group] = bins
    held = together[0][0] > 0
    return Cells(*(part[:, held] for part in together)), bin_of_cell[held]


def _classwise_floor(suite: Suite, replicates: int, random: torch.Generator) -> Tensor:
    """Classwise ECE of labels drawn from the probabilities: a binomial a class and bin."""
    classwise = suite.classwise
    assert classwise is not None
    held = (classwise.samples > 0).flatten().cpu()
    count = classwise.samples.flatten().cpu()[held].double()
    probability = classwise.probability.flatten().cpu()[held]
    mean = (probability / count).clamp(0, 1)
    errors = [(probability - torch.binomial(count, mean, generator=random)).abs().sum() for _ in range(replicates)]
    return torch.stack(errors) / suite.n / classwise.samples.shape[0]


def poisson_weights(blocks: Blocks, replicates: int, seed: int) -> Tensor:
    """How often each block counts in each resample, ``(replicates, blocks)``: the weights of `Blocks.totals`.

    A resample of few blocks may come out without any sample, and then has no metrics: it is drawn again, after all
    others, so that they stay what they are.
    """
    random = torch.Generator().manual_seed(seed)
    ones = torch.ones(replicates, blocks.cells.shape[0], dtype=torch.float64)
    weights = torch.poisson(ones, generator=random)
    samples = blocks.cells[..., 0].sum(1).cpu()
    while blocks.used and bool((empty := weights @ samples == 0).any()):
        weights[empty] = torch.poisson(ones[empty], generator=random)
    return weights.to(blocks.cells.device)


def _check_units(blocks: Blocks, what: str) -> None:
    if blocks.used < 2:
        raise InputError(
            f"the samples form {blocks.used} unit, but {what} needs at least 2, better 30 or more: "
            "add samples, or go without resampling, as with --bootstrap 0"
        )


def _differences(one: Totals, other: Totals) -> dict[str, Tensor]:
    mine, theirs = one.metrics(), other.metrics()
    return {name: mine[name] - theirs[name] for name in mine if name in theirs}


def _quantiles(values: Tensor, level: float) -> tuple[float, float]:
    ends = torch.quantile(values, values.new_tensor([(1 - level) / 2, (1 + level) / 2]))
    return float(ends[0]), float(ends[1])


def _ratio(top: float, bottom: float) -> float:
    """Their ratio; where calibration leaves nothing to chance, any deviation at all is infinitely large."""
    if bottom == 0:
        return 0.0 if abs(top) < 1e-12 else math.copysign(math.inf, top)
    return top / bottom


def _beyond_brownian(x: float) -> float:
    """The probability that |Brownian motion| on [0, 1] goes beyond x."""
    if x <= 0:
        return 1.0
    if math.isinf(x):
        return 0.0
    odd = range(1, 200, 2)
    within = math.fsum((1 if k % 4 == 1 else -1) / k * math.exp(-((k * math.pi) ** 2) / (8 * x * x)) for k in odd)
    return min(1.0, max(0.0, 1 - 4 / math.pi * within))
