"""Estimates of metrics: the value, an estimate without the bias of noise, and a valid 95 % interval.

    suite = Suite.of(logits, target, classwise=True)
    estimates(suite)["ece"]            # Estimate(value=0.031, debiased=0.028, low=0.017, high=0.041, note="")
    estimates(suite, blocks)["ece"]    # Blocks.of(..., unit=image): rows of one image are not independent

Every calibration error here is a seminorm of the gaps between confidence and accuracy, and noise makes it too large:
for gaps θ and noise N, ‖θ‖ <= E‖θ + N‖ <= ‖θ‖ + E‖N‖. How much depends on θ, which is not known. The lower end is the
least ‖θ‖ that would not have made the value P too large by z standard deviations, along gaps shrunken by κ standard
deviations each; for the ECE, |Σ gap| must not be too large for it either. The upper end is the largest that would not
have made P too small, for gaps that noise adds least to. The estimate without bias takes off what noise adds at
κ = 0.5. `benchmarks/coverage.py` shows how often they hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from acls.errors import InputError
from acls.metrics.bins import bin_of
from acls.metrics.cells import Cells
from acls.metrics.distributions import LEVEL, bias_aware_quantile, normal_quantile, student_quantile, wilson
from acls.metrics.ordered import equal_mass_sums
from acls.metrics.resampling import Blocks
from acls.metrics.smooth import smooth_errors
from acls.metrics.suite import Suite

FEW = 20
"""With fewer errors (or hits) an interval reaches at least as high as Wilson's says that their rate may."""
_DRAWS = 128
_SHARES = 9
_GROUPS = 256  # groups of samples whose noise is drawn together for KS and SmoothECE
_PRIOR = 4  # samples that the accuracy of a bin is drawn towards its confidence by, for the noise at the upper end
CENTRE, LOWEST = 0.5, 1.5  # κ of the estimate and of the interval's lower end


@dataclass(frozen=True)
class Estimate:
    """A metric's value, an estimate without the bias of noise, and the ends of its interval (None if not available)."""

    value: float
    debiased: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""
    """The reason why there is no interval, or a limitation of it."""


@dataclass(frozen=True, eq=False)
class Noise:
    """What the noise of bins follows from, where samples are independent and do not choose the bins: ``(B,)`` each."""

    bins: Cells
    squares: Tensor
    """Sums of squared weights: the counts, where all weights are 1."""
    calibrated: Tensor
    """The variance of each bin's residual, if the model is calibrated."""

    @cached_property
    def n(self) -> float:
        return float(self.bins.n)

    @cached_property
    def weight(self) -> float:
        """What one sample counts: 1, where all weights are 1."""
        return float(self.squares.sum()) / self.n

    def deviation(self, accuracy: Tensor) -> Tensor:
        """The standard deviation of each gap, if these are the true accuracies of the bins."""
        change = accuracy * (1 - accuracy) - self.bins.mean * (1 - self.bins.mean)
        return (self.calibrated + self.squares * change).clamp(min=1e-12 * self.weight**2).sqrt() / self.n

    def at(self, gap: Tensor) -> Tensor:
        """The same, if these are the true gaps."""
        return self.deviation((self.bins.mean - gap * self.n / self.bins.count.clamp(min=1e-300)).clamp(0, 1))

    def seen(self) -> Tensor:
        """The same by the accuracies seen, drawn towards the confidences by as much as a few more samples would."""
        prior = _PRIOR * self.weight
        right, count = self.bins.right + prior * self.bins.mean, self.bins.count + prior
        return self.deviation((right / count).clamp(0, 1))

    def drawn(self, size: Tensor) -> Tensor:
        """The part of the variance of Σ |gap| from which bins the samples fell in, if the gaps have these sizes."""
        squares = (size**2 * self.n / self.bins.count.clamp(min=1e-300)).where(self.bins.count > 0, 0.0)
        return (squares.sum(-1) - size.sum(-1) ** 2).clamp(min=0) * self.weight / self.n

    def shared(self, z: float, gap: Tensor) -> tuple[Tensor, Tensor]:
        """The quantile of Σ |gap| and the most that |Σ gap| may be, if both tests together err as often as z says.

        The sum may err only as often as the upper end, which is never below the value, does not: where all gaps are
        alike and have one sign, both can. What is left is divided among the value and the two sides of the sum
        (Bonferroni), of which the other side hardly matters unless the gaps are near 0.
        """
        size, seen = gap.abs().sum(1), self.seen()
        spread = ((self.at(gap) ** 2).sum(1) + self.drawn(gap)).sqrt()
        mean, variance, _ = _moments_of_abs(size / seen.sum())
        missed = _tail((seen.sum() * mean - size) / ((seen**2).sum() * variance).sqrt())
        allowed = _tail(size.new_tensor(z))
        other_side = _tail(z + 2 * size / spread) / allowed
        each = (allowed - missed).clamp(min=1e-9 * allowed) / (2 + other_side)
        return -torch.special.ndtri(allowed - (1 + other_side) * each), size - torch.special.ndtri(each) * spread


@dataclass(frozen=True, eq=False)
class Gaps:
    """The signed gaps of some cells, as parts of the whole, with the standard deviation of each."""

    gap: Tensor
    noise: Tensor
    joint: float = 0.0
    """The standard deviation of Σ |gap|, where it is larger since the cells' noise is not independent."""
    by_end: Noise | None = None
    """What tells the noise at either end; None where it is taken to be ``noise`` at both."""

    def bias(self, kappa: float) -> float:
        """By how much Σ |gap| is too large, if the true gaps are those observed less κ standard deviations."""
        true = (self.gap.abs() - kappa * self.noise).clamp(min=0)
        return float(_moments(true, self.noise)[0] - true.sum())

    def deviation(self) -> float:
        """The standard deviation of Σ |gap| where the cells' noise is independent."""
        return float(_moments(self.gap.abs(), self.noise)[1])

    def lowest(self, value: float, z: float, *, by_sum: bool = False) -> tuple[float, float]:
        """The lower end, and the standard deviation there.

        It is the least Σ |θ| that would not have made ``value`` too large by z standard deviations. The true gaps θ are
        taken to be those observed less κ standard deviations, for the least κ that will do, so that bias and spread are
        those at the end itself: at 0, those of a calibrated model. With ``by_sum`` it would not have made |Σ gap| too
        large either, which tells more where most gaps have one sign: it has no bias, and |Σ θ| is at most Σ |θ|.
        """
        kappa = torch.linspace(0, 6, 61, dtype=self.gap.dtype, device=self.gap.device)[:, None]
        true = (self.gap.abs() - kappa * self.noise).clamp(min=0)
        signed, noise, drawn = self.gap.sign() * true, self.noise, torch.zeros(())
        quantile, most = self.gap.new_tensor([z, math.inf])
        if self.by_end is not None:
            noise, drawn = self.by_end.at(signed), self.by_end.drawn(true)
            quantile, most = self.by_end.shared(z, signed) if by_sum else (quantile, most)
        mean, deviation, skewness = _moments(true, noise, drawn)
        room = mean + _quantile(quantile, skewness) * deviation - value
        room = torch.minimum(room, most - self.gap.sum().abs())
        return (0.0, float(deviation[-1])) if room[-1] > 0 else _end(true.sum(1), room, deviation)

    def highest(self, value: float, z: float) -> tuple[float, float]:
        """The upper end, and the standard deviation there.

        It is the largest Σ |θ| that would not have made ``value`` too small by z standard deviations. Noise adds least
        to gaps that are all as large, measured by their noise: those are taken.
        """
        noise, drawn = self.noise, 0.0
        if self.by_end is not None:
            noise = self.by_end.seen()
            drawn = float(self.by_end.drawn((self.gap.abs() - CENTRE * noise).clamp(min=0)))
        total, squares, cubes = (float((noise**power).sum()) for power in (1, 2, 3))
        if total == 0:
            return value, 0.0
        t = torch.linspace(0, value / total + 10, 4097, dtype=torch.float64)
        mean, variance, third = _moments_of_abs(t)
        spread = (squares * variance + drawn).sqrt()
        room = value - total * mean - _quantile(-z, cubes * third / spread**3) * spread
        return _end(total * t, room, spread)


def _end(size: Tensor, room: Tensor, deviation: Tensor) -> tuple[float, float]:
    """The size at which there is no more room, after the last that there is room at, and the deviation there."""
    last = min(int(((room > 0) * torch.arange(len(room), device=room.device)).max()), len(room) - 2)
    share = (room[last] / (room[last] - room[last + 1]).clamp(min=1e-300)).clamp(0, 1)
    return float(torch.lerp(size[last], size[last + 1], share)), float(deviation[last + 1])


@torch.no_grad()
def estimates(suite: Suite, blocks: Blocks | None = None) -> dict[str, Estimate]:
    """Estimate every metric of a suite. With ``blocks``, units are independent: images, or weighted samples.

    KS, SmoothECE and classwise ECE have intervals only for independent rows of equal weight. MCE has no interval.
    """
    if suite.n == 0:
        return {}
    units = units_of(suite, blocks)
    summary = suite.summary()
    z = normal_quantile() if units is None else units.z
    found = {"accuracy": _share(summary["accuracy"], suite, units)}
    if suite.proper is not None:
        found["top5"] = _share(summary["top5"], suite, units, column=2)
        for column, name in enumerate(("nll", "brier")):
            found[name] = _mean(summary[name], suite, column, units)
    extra = few_errors(summary["accuracy"], suite.n if units is None else units.effective)
    gaps = {name: gaps_of(suite, units, adaptive=name == "aece") for name in ("ece", "aece")}
    found |= {name: _absolute(summary[name], of, z / normal_quantile(), extra) for name, of in gaps.items()}
    if not suite.weighted:
        found["rmsce"] = _root_mean_square(summary, suite, gaps["ece"], z)
    if units is None:
        cells = suite.confidences.cells()
        if suite.classwise is not None:
            found["classwise_ece"] = _classwise(summary["classwise_ece"], suite)
        for name, norm in (("ks", _ks_norm), ("smece", smooth_errors)):
            found[name] = _drawn(summary[name], cells, norm, z, extra)
    for name in ("rmsce", "classwise_ece", "ks", "smece"):
        if name in summary and name not in found:
            found[name] = Estimate(summary[name], note="no interval: needs independent rows of equal weight")
    found["mce"] = Estimate(summary["mce"], note="no interval holds for the largest of many gaps")
    return found


def units_of(suite: Suite, blocks: Blocks | None, level: float = LEVEL) -> Units | None:
    """What varies from unit to unit; None where the units are samples of equal weight."""
    if suite.weighted and blocks is None:
        raise InputError(
            "weighted samples need blocks for their variance: pass blocks=Blocks.of(..., sample_weight=...)"
        )
    return Units(blocks, level) if blocks is not None and (blocks.shared or suite.weighted) else None


@lru_cache(maxsize=8)
def normals(rows: int, columns: int) -> Tensor:
    """Return standard normal draws, the same in every call."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _moments_of_abs(size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and third central moment of |size + Z| for a standard normal Z; from 10 on those of size + Z."""
    near = size.clamp(max=10)
    signed = near * torch.special.erf(near / math.sqrt(2))
    mean = math.sqrt(2 / math.pi) * torch.exp(-(near**2) / 2) + signed
    square = near**2 + 1
    third = mean * (square + 1) + signed - 3 * mean * square + 2 * mean**3
    return mean + (size - near), square - mean**2, third


def _moments(size: Tensor, noise: Tensor, drawn: Tensor | float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, standard deviation and skewness of Σ |size + noise Z| for independent normal Z, with ``drawn`` variance."""
    mean, variance, third = _moments_of_abs((size / noise).where(noise > 0, 0.0))
    deviation = ((noise**2 * variance).sum(-1) + drawn).sqrt()
    skewness = (noise**3 * third).sum(-1) / deviation.clamp(min=1e-100) ** 3
    return torch.where(noise > 0, noise * mean, size).sum(-1), deviation, skewness


def _tail(z: Tensor) -> Tensor:
    """P(Z > z) of a standard normal Z, also where ``torch.special.ndtr`` is 0 already."""
    return torch.erfc(z / math.sqrt(2)) / 2


def _quantile(z: float | Tensor, skewness: float | Tensor) -> float | Tensor:
    """The quantile, in standard deviations, of what is skewed where a normal one is z (Cornish and Fisher 1938)."""
    return z + skewness * (z**2 - 1) / 6


def _absolute(value: float, gaps: Gaps, scale: float, extra: float = 0.0) -> Estimate:
    """The estimate of Σ |gap|, with quantiles ``scale`` times those of a normal distribution.

    How much noise adds depends on the true gaps: the least that it adds at one end is not the most that it adds at the
    other, and what lies between is bias that is not known. Near the noise the lower end is 0 and cannot fail.
    """
    wider = scale * max(1.0, gaps.joint / max(gaps.deviation(), 1e-300))
    z = one_side = wider * bias_aware_quantile(math.inf)
    (low, down), (high, up) = (end(value, one_side) for end in (gaps.lowest, gaps.highest))
    if low > 0:
        unknown = 2 * (max(high, value) - low) / max(down + up, 1e-300) - 2 * one_side
        z = wider * bias_aware_quantile(max(unknown / wider, 0.0))
    low, high = gaps.lowest(value, z, by_sum=True)[0], gaps.highest(value, z)[0]
    low, high = min(low, value), min(1.0, max(high, value, value + extra))
    return Estimate(value, min(max(value - gaps.bias(CENTRE), low), high), low, high)


def few_errors(accuracy: float, n: float, level: float = LEVEL) -> float:
    """Return how far a calibration error may exceed the observed one, as few errors (or few hits) are uncertain."""
    rate = min(accuracy, 1 - accuracy)
    return wilson(rate, n, level)[1] - rate if rate * n < FEW else 0.0


def _noise(cells: Cells) -> tuple[Tensor, Tensor]:
    """The variances of each cell's residual: as observed, and as calibration would have it."""
    mean = cells.mean
    return cells.confidence * mean - 2 * mean * cells.right + cells.right, cells.confidence * (1 - mean)


def gaps_of(suite: Suite, units: Units | None = None, *, adaptive: bool = False) -> Gaps:
    """Return the gaps, with their noise, whose absolute values sum to the ECE or the adaptive ECE."""
    if units is not None:
        return units.gaps(adaptive=adaptive)
    cells, bins = suite.confidences.cells(), suite.bins.bins
    columns = (cells.count, cells.confidence, cells.right, *_noise(cells))
    if adaptive:
        sums = [part[0] for part in equal_mass_sums(cells, bins, columns)[0]]
    else:
        index = bin_of(cells.mean[0], bins)
        sums = [torch.bincount(index, part[0], bins) for part in columns]
    held, (observed, calibrated) = Cells(*sums[:3]), sums[3:]
    noise = torch.maximum(observed, calibrated).clamp(min=0).sqrt() / suite.n
    by_end = None if adaptive else Noise(held, held.count, calibrated)
    return Gaps(held.residual / suite.n, noise, by_end=by_end)


def _classwise(value: float, suite: Suite) -> Estimate:
    classwise = suite.classwise
    assert classwise is not None
    residual, noise = classwise.residual, classwise.noise
    if residual.shape[0] == 2:  # the noise of either is that of the other
        residual, noise = residual[:1], noise[:1]
    scale = suite.n * residual.shape[0]
    gaps = Gaps(residual.flatten() / scale, noise.flatten().sqrt() / scale)
    found = _absolute(value, gaps, 1.0)
    few = found.low == 0 and gaps.bias(1e6) > value / 2
    return replace(found, note="so few samples per class cannot tell it from 0") if few else found


def _root_mean_square(summary: dict[str, float], suite: Suite, gaps: Gaps, z: float) -> Estimate:
    """RMSCE by its square, whose noise in every bin, S / m, is known and taken off (Kumar et al., NeurIPS 2019)."""
    n = suite.n
    m = suite.bins.samples.double()
    kept = m > 1
    m, gap = m[kept], gaps.gap[kept] * n / m[kept]
    s = ((gaps.noise[kept] * n) ** 2 - m * gap**2).clamp(min=0) * m / (m - 1)
    linear, quadratic = 4 * float((gap**2 * s).sum()) / n**2, float(((s / m) ** 2).sum()) / n**2
    mean = float((m * gap**2).sum()) / n
    between = float((m * (gap**2 - mean) ** 2).sum()) / n**2
    margin = z * math.sqrt(max(linear - 2 * quadratic, 2 * quadratic) + between)
    value, debiased = summary["rmsce"], summary["rmsce_debiased"]
    low, high = (math.sqrt(max(0.0, debiased**2 + sign * margin)) for sign in (-1, 1))
    return Estimate(value, debiased, min(low, value), min(1.0, max(high, value)))


def _drawn(
    value: float, cells: Cells, norm: Callable[[Cells, Tensor, float], Tensor], z: float, extra: float
) -> Estimate:
    """The estimate of a seminorm without a closed form, from draws of the noise.

    The unknown gaps are taken to be a share of those seen: at the lower end the largest that would not have made the
    value too large by z standard deviations, for the estimate the one that makes it what is expected.
    """
    groups = grouped(cells)
    residual, *both = (part[0] for part in (groups.residual, *_noise(groups)))
    noise = normals(_DRAWS, len(residual)).to(residual) * torch.maximum(*both).clamp(min=0).sqrt()
    share = torch.linspace(0, 1, _SHARES, dtype=residual.dtype, device=residual.device)
    drawn = norm(groups, torch.cat([*(noise + each * residual for each in share), residual[None]]), value)
    seen, drawn = float(drawn[-1]), drawn[:-1].view(_SHARES, _DRAWS)
    mean, deviation = drawn.mean(1), drawn.std(1)
    fits = mean + z * deviation <= value
    low = min(value, float((share * seen)[fits].max())) if bool(fits.any()) else 0.0
    # The largest sum up to some confidence varies most where it is that of all samples.
    most = float(noise.sum(1).std() / groups.n) if norm is _ks_norm else 0.0
    high = min(1.0, max(value + z * max(float(deviation[-1]), most), value + extra))
    # The share of the gaps at which the value would be what is expected.
    expected = mean <= value
    debiased = float((share * seen)[expected].max()) if bool(expected.any()) else 0.0
    return Estimate(value, min(max(debiased, low), high), low, high)


def _ks_norm(groups: Cells, residual: Tensor, _: float) -> Tensor:
    return residual.cumsum(-1).abs().amax(-1) / groups.n


def grouped(cells: Cells, groups: int = _GROUPS, bins: int = 1) -> Cells:
    """The samples in some groups of near equal mass, none across the edge of a bin."""
    group = bin_of(cells.mean[0], bins) * groups + cells.equal_mass(groups)[0]
    group = torch.unique_consecutive(group, return_inverse=True)[1]
    together = cells.map(lambda part: torch.bincount(group, weights=part[0])[None])
    return together[:, together.count[0] > 0]


def _share(share: float, suite: Suite, units: Units | None, column: int | None = None) -> Estimate:
    """Wilson's interval of accuracy, or of column ``column`` of the blocks' proper sums."""
    size = suite.n if units is None else units.size(share, column)
    return Estimate(share, share, *wilson(share, size))


def _mean(value: float, suite: Suite, column: int, units: Units | None) -> Estimate:
    if not math.isfinite(value):
        return Estimate(value, note="no interval: a label had probability 0")
    if units is not None:
        margin = units.z * math.sqrt(units.variance(units.sums(column), value))
    elif suite.n < 2:
        return Estimate(value, note="no interval: one sample")
    else:
        assert suite.proper is not None
        variance = max(0.0, float(suite.proper.squares[column]) / suite.n - value**2) / (suite.n - 1)
        margin = student_quantile(int(suite.n) - 1) * math.sqrt(variance)
    return Estimate(value, value, max(0.0, value - margin), value + margin)


class Units:
    """The sums of independent units, and what varies from unit to unit.

    Any number of weighted samples can be a unit. A mean over all is the ratio of two sums over units, so that a unit's
    part of its noise is its own sum less its share of the whole.
    """

    def __init__(self, blocks: Blocks, level: float = LEVEL) -> None:
        used = blocks.units > 0
        self.blocks = blocks
        self.cells = Cells(*blocks.cells[used].unbind(-1))
        self.held = blocks.units[used]
        self._proper = None if blocks.proper is None else blocks.proper[used]
        self.number = len(self.held)
        self.n = float(self.held.sum())
        self.z = student_quantile(max(1, self.number - 1), level)
        self._most = self.n**2 / float(blocks.squares.sum())
        """Samples of equal weight that would tell as much, if all were independent (Kish 1965)."""

    def sums(self, column: int | None) -> Tensor:
        """The hits of each unit, or a column of its proper sums."""
        if column is None:
            return self.cells.right.sum(1)
        assert self._proper is not None
        return self._proper[:, column]

    def variance(self, sums: Tensor, mean: float) -> float:
        """The variance of a mean over all samples, of which the units have the sums."""
        noise = float(((sums - mean * self.held) ** 2).sum())
        return noise / self.n**2 * self.number / max(1, self.number - 1)

    @property
    def effective(self) -> float:
        """The number of independent samples with the same information about the accuracy."""
        return self.size(float(self.cells.right.sum()) / self.n)

    def size(self, share: float, column: int | None = None) -> float:
        """Return the number of independent samples with the same information about a proportion."""
        variance = self.variance(self.sums(column), share)
        known = min(self.number, self._most) if variance <= 0 or share in (0.0, 1.0) else share * (1 - share) / variance
        return min(self._most, known) * (normal_quantile() / self.z) ** 2

    def noise(self, *, adaptive: bool) -> tuple[Tensor, Tensor]:
        """The gaps of the bins, as parts of the whole, and what each unit adds to their noise, ``(units, bins)``."""
        index, residual = self.blocks.bin_of_cell(adaptive=adaptive), self.cells.residual
        sums = residual.new_zeros(self.number, self.blocks.bins).index_add_(1, index, residual)
        gap = sums.sum(0) / self.n
        return gap, (sums - self.held[:, None] * gap) / self.n

    def gaps(self, *, adaptive: bool) -> Gaps:
        """The gaps of the bins with their noise, at least that of independent samples of a calibrated model."""
        gap, noise = self.noise(adaptive=adaptive)
        index, parts = self.blocks.bin_of_cell(adaptive=adaptive), (self.blocks.squares, self.blocks.calibrated)
        squares, calibrated = (torch.zeros_like(gap).index_add_(0, index, part) for part in parts)
        spread = torch.maximum((noise**2).sum(0), calibrated / self.n**2).sqrt()
        if not self.blocks.shared:
            held = self.blocks.pooled[0].binned(index, self.blocks.bins)
            return Gaps(gap, spread, by_end=None if adaptive else Noise(held, squares, calibrated))
        draws = normals(_DRAWS, self.number).to(noise) @ noise
        joint = max(float((gap + draws).abs().sum(1).std()), float((noise @ gap.sign()).norm()))
        return Gaps(gap, spread, joint)
