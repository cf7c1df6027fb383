"""Tests of whether a model is miscalibrated, and whether one model is better than another; one p-value per question.

calibration(suite)                      # floors, tests, and one p of "this model is calibrated"
compare((suite, blocks), (other, theirs))["ece"].p      # of equal ECE, on the same samples
over_seeds([0.021, 0.024], [0.035, 0.031], deviation)   # of two methods, from seeds and samples
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import torch
from torch import Tensor

from acls.errors import InputError
from acls.metrics import distributions
from acls.metrics.bins import bin_of
from acls.metrics.cells import Cells
from acls.metrics.classwise import ClasswiseBins
from acls.metrics.distributions import LEVEL, chi_squared_tail, for_many, normal_quantile, normal_tail, p_of_many
from acls.metrics.estimates import CENTRE, LOWEST, Units, few_errors, gaps_of, grouped, normals, units_of
from acls.metrics.resampling import Blocks, cell_metrics, check_same_units, simulated_p
from acls.metrics.suite import Suite

REPLICATES = 1000
_SIMULATED = 512  # groups of samples that a simulation works on
_ERRORS = ("ece", "mce", "rmsce", "aece", "ks", "smece", "classwise_ece")
_RMS_BINS = 10
_RMS_ERRORS = 15  # with fewer errors or hits the test of RMS does not hold its level
_DRAWS = 1000
_SURE = 1e-6  # confidences are at least so far from 0 and 1 where their logit is taken
_MOST_SEEDS = 1000


@dataclass(frozen=True)
class Floor:
    """The mean and the range of a calibration error for a perfectly calibrated model."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Test:
    """A test statistic, and the probability of a value at least as extreme if the model is calibrated."""

    statistic: float
    p: float


@dataclass(frozen=True)
class Calibration:
    """The evidence that a model is not calibrated."""

    p: float
    """The p-value of "this model is calibrated", combined from the tests in ``combined``."""
    tests: dict[str, Test]
    combined: tuple[str, ...]
    floors: dict[str, Floor] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """The difference of a metric (first model minus second) without the bias of noise, its interval and its p-value.

    If no test holds its level, all values except the difference are None.
    """

    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    """The p-value of "the metric is the same for both"."""


SuiteAndBlocks = tuple[Suite, Blocks]


def calibration(
    suite: Suite,
    blocks: Blocks | None = None,
    *,
    replicates: int = REPLICATES,
    smooth: bool = True,
    floors: bool = True,
) -> Calibration:
    """Test whether predictions are right with the probability given by their confidence; combine the tests to one p.

    If all probabilities were redrawn (``Suite.of(..., redraw=True)``), the tests are the log score, the Cox score of
    the top label, the frequencies of the classes, and the ECE above its noise floor. With top labels only, they are
    Spiegelhalter, KS, and the floor. Each p is simulated with labels drawn from the model's own probabilities, and
    `cauchy` combines them. With ``blocks`` of dependent rows (for example images) or of weighted rows, the variances
    of the scores are those between units.
    """
    if suite.n == 0:
        raise InputError("there is nothing to test: no sample has a label")
    units = units_of(suite, blocks)
    if units is not None:
        tests = _unit_tests(units)
        return Calibration(distributions.cauchy(test.p for test in tests.values()), tests, tuple(tests))
    draws = _Draws(suite, replicates)
    tests = draws.tests(suite)
    weights = {"spiegelhalter": 1, "ks": 1, "floor": 1}
    if suite.redraws is not None:
        tests |= {name: Test(*found) for name, found in suite.redraws.tests().items()}
        weights = {"log": 3, "cox": 3, "classes": 2, "floor": 2}  # so that over- and underconfidence is found first
    p = distributions.cauchy([tests[name].p for name in weights], weights.values())
    return Calibration(p, tests, tuple(weights), draws.floors(suite, smooth=smooth) if floors else {})


def noise_floor(suite: Suite, *, replicates: int = REPLICATES, smooth: bool = True) -> dict[str, Floor]:
    """Return the calibration errors of a calibrated model with the same confidences and the same number of samples.

    Each replicate keeps the confidences and draws every hit with its confidence as probability. Samples of nearly the
    same confidence are drawn together from a binomial, so the cost does not depend on n. ``smooth=False`` leaves out
    SmoothECE, which takes longer than all others.
    """
    if suite.n == 0 or suite.weighted:
        raise InputError("expected samples of equal weight for a noise floor, got no samples or weighted ones")
    return _Draws(suite, replicates).floors(suite, smooth=smooth)


class _Draws:
    """Hits of the top label drawn from its confidence, many times."""

    def __init__(self, suite: Suite, replicates: int) -> None:
        self.bins = suite.bins.bins
        self.seen = grouped(suite.confidences.cells().map(Tensor.cpu), _SIMULATED, self.bins)
        self.mean = self.seen.mean
        self.random = torch.Generator().manual_seed(0)
        count, confidence = (part.expand(replicates, -1) for part in (self.seen.count, self.seen.confidence))
        right = torch.binomial(count, self.mean.expand(replicates, -1), generator=self.random)
        self.cells = Cells(count, confidence, right)

    def floors(self, suite: Suite, *, smooth: bool) -> dict[str, Floor]:
        found = cell_metrics(self.cells, bin_of(self.mean[0], self.bins), self.bins, smooth=smooth)
        if suite.classwise is not None:
            found["classwise_ece"] = _classwise_floor(suite.classwise, len(self.cells.count), self.random)
        ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
        errors = {name: found[name] for name in _ERRORS if name in found}
        return {name: Floor(float(one.mean()), *torch.quantile(one, ends).tolist()) for name, one in errors.items()}

    def tests(self, suite: Suite) -> dict[str, Test]:
        variance = self.seen.count * self.mean * (1 - self.mean)
        index = bin_of(self.mean[0], self.bins)
        seen, drawn = self.seen.residual, self.cells.residual
        tilt = 1 - 2 * self.mean

        def spiegelhalter(residual: Tensor) -> Tensor:
            return (-residual * tilt).sum(1) / (tilt**2 * variance).sum().sqrt().clamp(min=1e-150)

        def ks(residual: Tensor) -> Tensor:
            return residual.cumsum(1).abs().amax(1) / variance.sum().sqrt().clamp(min=1e-150)

        def floor(residual: Tensor) -> Tensor:
            sums = residual.new_zeros(residual.shape[0], self.bins).index_add_(1, index, residual)
            return sums.abs().sum(1) / suite.n

        logit = torch.logit(self.mean.clamp(_SURE, 1 - _SURE))[0]
        design = torch.stack([torch.ones_like(logit), logit], 1)
        information = design.T @ (variance[0, :, None] * design)
        information = torch.linalg.pinv(information, hermitian=True)

        def cox(residual: Tensor) -> Tensor:
            score = residual @ design
            return torch.einsum("rd,de,re->r", score, information, score)

        result = {}
        for name, statistic in (("spiegelhalter", spiegelhalter), ("ks", ks), ("cox", cox), ("floor", floor)):
            value = float(statistic(seen)[0])
            result[name] = Test(value, simulated_p(abs(value), statistic(drawn).abs()))
        return result


def _classwise_floor(classwise: ClasswiseBins, replicates: int, random: torch.Generator) -> Tensor:
    """Return the classwise ECE of labels drawn from the probabilities, with a binomial for each class and bin."""
    held = (classwise.samples > 0).flatten().cpu()
    count = classwise.samples.flatten().cpu()[held].double()
    probability = classwise.probability.flatten().cpu()[held]
    mean = (probability / count).clamp(0, 1)
    errors = [(probability - torch.binomial(count, mean, generator=random)).abs().sum() for _ in range(replicates)]
    return torch.stack(errors) / classwise.n / classwise.samples.shape[0]


def _unit_tests(units: Units) -> dict[str, Test]:
    """Test calibration by Spiegelhalter's and Cox's scores of independent units.

    The variance is the larger of two: the one under calibration with independent samples, and the one observed between
    units (Student's t and Hotelling's T²). The observed variance alone is too small if errors are few, and the test
    would reject too often.
    """
    if units.number < 4:
        raise InputError(f"expected at least 4 independent units, images for example, got {units.number}: add samples")
    mean, freedom = units.blocks.pooled.mean[0], units.number - 1
    logit = torch.logit(mean.clamp(_SURE, 1 - _SURE))
    design = torch.stack([torch.ones_like(logit), logit, 1 - 2 * mean], 1)
    scores = -units.cells.residual @ design
    spreads = [design.T @ (units.blocks.calibrated[:, None] * design)]
    if units.blocks.shared:
        spreads.append(torch.cov(scores.T) * units.number)
    total = scores.sum(0)
    t = float(total[2]) / math.sqrt(max(1e-300, *(float(spread[2, 2]) for spread in spreads)))
    t2 = min(float(total[:2] @ torch.linalg.pinv(spread[:2, :2], hermitian=True) @ total[:2]) for spread in spreads)
    if not units.blocks.shared:
        return {"spiegelhalter": Test(t, normal_tail(abs(t))), "cox": Test(t2, chi_squared_tail(t2, 2))}
    # T² (u - 2) / (2 (u - 1)) has Fisher's distribution with 2 and u - 2 degrees of freedom.
    p = (1 + t2 / freedom) ** (-(freedom - 1) / 2)
    return {"spiegelhalter": Test(t, distributions.student_tail(abs(t), freedom)), "cox": Test(t2, p)}


def compare(first: SuiteAndBlocks, second: SuiteAndBlocks, *, level: float = LEVEL) -> dict[str, Difference]:
    """Compare two models on the same samples.

    ECE and adaptive ECE: the bias of each depends on the unknown gaps. The interval of the difference allows for the
    largest bias of one and the smallest of the other, and p is the level at which the interval reaches 0. RMSCE: a more
    powerful test, of equal mean squared gaps; models of equal ECE can differ in it. Accuracy, NLL and Brier: paired
    means. Intervals and p-values treat the units of the blocks as independent.
    """
    check_same_units(first[1], second[1])
    units = Units(first[1], level), Units(second[1], level)
    if units[0].number < 2:
        raise InputError(f"expected at least 2 independent units to compare two models, got {units[0].number}")
    one, other = first[0].summary(), second[0].summary()
    found = {
        name: Difference(one[name] - other[name])
        for name in one
        if name in other and name != "n" and not name.endswith("_bound")
    }
    for name, column in (("accuracy", None), ("nll", 0), ("brier", 1), ("top5", 2)):
        if name in found and math.isfinite(found[name].difference):
            found[name] = _mean_difference(*units, column, found[name].difference)
    for name in ("ece", "aece"):
        found[name] = ece_difference(first, second, adaptive=name == "aece", level=level)
    if not first[0].weighted:
        found["rmsce"] = rms_difference(first, second, level=level)
    return found


def _mean_difference(one: Units, other: Units, column: int | None, difference: float) -> Difference:
    spread = math.sqrt(one.variance(one.sums(column) - other.sums(column), difference))
    if spread == 0:
        return Difference(difference, difference, difference, 1.0 if difference == 0 else 0.0)
    t, freedom = abs(difference) / spread, one.number - 1
    p = distributions.student_tail(t, freedom) if freedom < 999 else normal_tail(t)
    return Difference(difference, difference - one.z * spread, difference + one.z * spread, p)


def ece_difference(
    first: SuiteAndBlocks, second: SuiteAndBlocks, *, adaptive: bool = False, level: float = LEVEL
) -> Difference:
    """Return the difference of two ECEs, or adaptive ECEs, without the bias of noise, and the p-value of equality."""
    values, gaps, noise, few = [], [], [], []
    for suite, blocks in (first, second):
        units, by_unit = Units(blocks, level), units_of(suite, blocks, level)
        summary = suite.summary() if adaptive else suite.bins.summary()
        values.append(summary["aece" if adaptive else "ece"])
        gaps.append(gaps_of(suite, by_unit, adaptive=adaptive))
        noise.append(units.noise(adaptive=adaptive))
        few.append(few_errors(summary["accuracy"], suite.n if by_unit is None else units.effective, level))
    shared = normals(_DRAWS, len(noise[0][1]))
    drawn = [(gap + shared.to(part) @ part).abs().sum(1) for gap, part in noise]
    deviation = float((drawn[0] - drawn[1]).std())

    def difference(*kappas: float) -> float:
        one, other = (value - gap.bias(kappa) for value, gap, kappa in zip(values, gaps, kappas, strict=True))
        return one - other

    lowest, centre, highest = difference(LOWEST, 0.0), difference(CENTRE, CENTRE), difference(0.0, LOWEST)
    z = normal_quantile(level) if by_unit is None else units.z
    margin = max(z * deviation, *few)
    touches = max(lowest, -highest, 0.0)
    scale = z / margin if margin > 0 else math.inf
    p = normal_tail(touches * scale) if touches > 0 else 1.0
    low, high = lowest - margin, highest + margin
    return Difference(min(max(centre, low), high), low, high, p)


def rms_difference(first: SuiteAndBlocks, second: SuiteAndBlocks, *, level: float = LEVEL) -> Difference:
    """Return the difference of two RMS calibration errors over ten equal-mass bins, and the p-value of equality.

    The test compares the squares, each minus its noise. The reported difference is the difference of the squares
    divided by the sum of the two plug-in values. There is no p if a model has fewer than 15 errors or hits.
    """
    total = first[0].bins.rmsce + second[0].bins.rmsce
    for suite, _ in (first, second):
        hits = int(suite.bins.right.sum())
        if min(hits, suite.n - hits) < _RMS_ERRORS:
            return Difference(first[0].bins.rmsce - second[0].bins.rmsce)
    n, held = first[0].n, first[1].units
    one, other = (_Squares(blocks) for _, blocks in (first, second))
    joint = (one.residual.T @ other.residual) * one.factor[:, None] * other.factor
    linear = float((one.gap**2 * one.spread).sum() + (other.gap**2 * other.spread).sum())
    linear = 4 * (linear - 2 * float(one.gap @ joint @ other.gap)) / n**2
    square = float(((one.spread / one.count) ** 2).sum() + ((other.spread / other.count) ** 2).sum())
    square = (square - 2 * float((joint**2 / (one.count[:, None] * other.count)).sum())) / n**2
    apart = one.explained - other.explained
    apart = apart - apart.sum() / n * held
    variance = max(linear - 2 * square, 2 * square, 0.0) + float((apart**2).sum()) / n**2
    value, deviation = one.square - other.square, math.sqrt(variance)
    margin = normal_quantile(level) * deviation
    p = normal_tail(abs(value) / deviation) if deviation > 0 else float(value == 0)
    return Difference(value / total, (value - margin) / total, (value + margin) / total, p)


class _Squares:
    """The squared gaps of equal-mass bins, and their noise."""

    def __init__(self, blocks: Blocks) -> None:
        index = blocks.pooled.equal_mass(_RMS_BINS)[0]
        sums = Cells(*blocks.cells.unbind(-1)).binned(index, _RMS_BINS)
        kept = sums.count.sum(0) > 1
        count, difference = sums.count[:, kept], sums.residual[:, kept]
        self.count = count.sum(0)
        self.gap = difference.sum(0) / self.count
        self.residual = difference - count * self.gap
        """``(units, bins)``: the residual of each unit less that of its bin."""
        units = (count > 0).sum(0).clamp(min=2)  # units that a bin's noise is known from
        self.factor = (units / (units - 1)).sqrt()
        self.spread = self.factor**2 * (self.residual**2).sum(0)
        self.explained = count @ self.gap**2
        """Each unit's sum of its samples' bins' squared gaps."""
        self.square = float((self.count * self.gap**2 - self.spread / self.count).sum() / blocks.units.sum())
        """The mean squared gap minus its noise."""


@dataclass(frozen=True)
class SeedDifference:
    """The mean difference of a metric between two methods, over the seeds that both have."""

    value: float
    low: float
    high: float
    p: float
    """The p-value of "no difference"; 1 for a single seed, which carries no information about other seeds."""
    seeds: int
    needed: int | None
    """The number of seeds at which such a difference would be significant; None if more test samples are needed."""

    @property
    def sign(self) -> int:
        """-1 or 1 if the interval excludes 0, else 0."""
        return (self.low > 0) - (self.high < 0)


def over_seeds(
    first: Sequence[float],
    second: Sequence[float],
    deviation: float = 0.0,
    *,
    resolution: float = 0.0,
    level: float = LEVEL,
) -> SeedDifference:
    """Compare two methods by their values per seed (the estimates without bias, if they exist).

    The difference has two sources of uncertainty: the seeds, with Student's distribution, and the test samples, with
    the standard ``deviation`` of the mean difference over samples. The squares of their margins are added. p is the
    level at which the interval reaches 0. If the metric is a count, ``resolution`` is the step from one count to the
    next. Few seeds often give the same difference of counts, so the spread is at least that of rounding.
    """
    differences = [one - other for one, other in zip(first, second, strict=True)]
    n = len(differences)
    mean = math.fsum(differences) / n
    spread = math.sqrt(math.fsum((one - mean) ** 2 for one in differences) / max(n - 1, 1))
    spread = max(spread, resolution / math.sqrt(6))
    if n == 1 or (deviation == 0 and spread <= 1e-9 * abs(mean)):  # equal differences tell nothing about other seeds
        return SeedDifference(mean, -math.inf, math.inf, 1.0, n, None)

    def margin(level: float, seeds: int) -> float:
        by_seeds = distributions.student_quantile(seeds - 1, level) * spread / math.sqrt(seeds)
        return math.hypot(by_seeds, normal_quantile(level) * deviation)

    def inside(t: float) -> bool:
        z = -NormalDist().inv_cdf(max(distributions.student_tail(t, n - 1), 1e-300) / 2)
        return math.hypot(t * spread / math.sqrt(n), z * deviation) < abs(mean)

    most = abs(mean) / max(spread, 1e-9 * abs(mean), 1e-300) * math.sqrt(n)
    p = distributions.student_tail(distributions.last(inside, most), n - 1)
    needed = None
    if mean and normal_quantile(level) * deviation < abs(mean):
        needed = next((seeds for seeds in range(2, _MOST_SEEDS) if margin(level, seeds) < abs(mean)), None)
    end = margin(level, n)
    return SeedDifference(mean, mean - end, mean + end, p, n, needed)


@dataclass(frozen=True)
class Ranking:
    """The best of several methods by one metric compared with all others, and each method with the baseline."""

    best: str
    p: float
    """The p-value of "another method is as good": the largest p against any other, which needs no correction."""
    against: dict[str, SeedDifference]
    """The best minus each other method, the closest mean first."""
    to_baseline: dict[str, SeedDifference]
    """Each method minus the baseline. Intervals and p-values are corrected for their number (`for_many`)."""
    means: dict[str, float]
    """Of each method, over its seeds."""


def ranking(
    values: Mapping[str, Mapping[int, float]],
    pair: Callable[[str, str, float], SeedDifference | None],
    *,
    higher_is_better: bool = False,
) -> Ranking | None:
    """Rank methods by the mean of their values over seeds. ``pair`` returns one method minus another at a level.

    A method is called the best only if it differs from every other. The result is None if ``pair`` has no difference,
    for example for methods without a common seed. The baseline is the first method.
    """
    means = {name: math.fsum(found.values()) / len(found) for name, found in values.items() if found}
    best, *others = sorted(means, key=means.__getitem__, reverse=higher_is_better)
    against = {name: found for name in others if (found := pair(best, name, LEVEL)) is not None}
    if len(against) < len(others) or not others:
        return None
    baseline, *rest = values
    to_baseline = all_against(baseline, [name for name in rest if name in means], pair)
    return Ranking(best, max(found.p for found in against.values()), against, to_baseline, means)


def all_against(
    baseline: str, names: Sequence[str], pair: Callable[[str, str, float], SeedDifference | None]
) -> dict[str, SeedDifference]:
    """Compare each name with the baseline by ``pair``; correct intervals and p-values for their number (Bonferroni)."""
    level = for_many(len(names))
    found_at = {name: pair(name, baseline, level) for name in names}
    return {name: replace(one, p=p_of_many(one.p, len(names))) for name, one in found_at.items() if one is not None}
