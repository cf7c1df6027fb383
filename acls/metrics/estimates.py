"""Estimates of metrics: the value, an estimate without the bias of noise, and a valid 95 % interval.

    suite = Suite.of(logits, target, classwise=True)
    estimates(suite)["ece"]            # Estimate(value=0.031, debiased=0.028, low=0.017, high=0.041, note="")
    estimates(suite, blocks)["ece"]    # Blocks.of(..., unit=image): rows of one image are not independent

Every calibration error here is a seminorm of the gaps between confidence and accuracy. Noise makes it too large: for
gaps θ and noise N, ‖θ‖ <= E‖θ + N‖ <= ‖θ‖ + E‖N‖. The size of this bias depends on θ, which is unknown. Each end of the
interval inverts a test. The lower end is the smallest ‖θ‖ for which the observed value P is less than z standard
deviations above its expectation; θ is the observed gaps, each reduced by κ standard deviations. For the ECE, |Σ gap|
must be consistent with the lower end as well. The upper end is the largest ‖θ‖ for which P is less than z standard
deviations below its expectation, for the θ to which noise adds least. The debiased estimate subtracts the bias at
κ = 0.5. `benchmarks/coverage.py` measures the coverage.
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
from acls.metrics.classwise import ClasswiseBins
from acls.metrics.distributions import LEVEL, bias_aware_quantile, normal_quantile, student_quantile, wilson
from acls.metrics.ordered import equal_mass_sums
from acls.metrics.proper import Proper
from acls.metrics.resampling import Blocks
from acls.metrics.smooth import smooth_errors
from acls.metrics.suite import Suite

FEW = 20
"""With fewer errors (or hits), the upper end is at least what Wilson's interval of their rate allows."""
_DRAWS = 128
_SHARES = 9
_GROUPS = 256  # groups of samples whose noise is drawn together for KS and SmoothECE
_PRIOR = 4  # pseudo-samples that shrink the accuracy of a bin towards its confidence, for the noise at the upper end
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
    """The noise of bins with fixed edges and independent samples, as a function of the true gaps: ``(B,)`` each."""

    bins: Cells
    squares: Tensor
    """Sums of squared weights per bin; equal to the counts if all weights are 1."""
    calibrated: Tensor
    """The variance of the residual of each bin under calibration."""

    @cached_property
    def n(self) -> float:
        return float(self.bins.n)

    @cached_property
    def weight(self) -> float:
        """The mean weight of a sample, weighted by itself; 1 if all weights are 1."""
        return float(self.squares.sum()) / self.n

    def deviation(self, accuracy: Tensor) -> Tensor:
        """Return the standard deviation of each gap, given the true accuracy of each bin."""
        change = accuracy * (1 - accuracy) - self.bins.mean * (1 - self.bins.mean)
        return (self.calibrated + self.squares * change).clamp(min=1e-12 * self.weight**2).sqrt() / self.n

    def at(self, gap: Tensor) -> Tensor:
        """Return the standard deviation of each gap, given the true gaps."""
        return self.deviation((self.bins.mean - gap * self.n / self.bins.count.clamp(min=1e-300)).clamp(0, 1))

    def seen(self) -> Tensor:
        """Return the standard deviation of each gap by the observed accuracies, shrunken a bit to the confidences."""
        prior = _PRIOR * self.weight
        right, count = self.bins.right + prior * self.bins.mean, self.bins.count + prior
        return self.deviation((right / count).clamp(0, 1))

    def drawn(self, size: Tensor) -> Tensor:
        """Return the variance of Σ |gap| that comes from the random counts of the bins, given the sizes of the gaps."""
        squares = (size**2 * self.n / self.bins.count.clamp(min=1e-300)).where(self.bins.count > 0, 0.0)
        return (squares.sum(-1) - size.sum(-1) ** 2).clamp(min=0) * self.weight / self.n

    def shared(self, z: float, gap: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantile for Σ |gap| and the largest |Σ gap|; both tests together have the size that z gives.

        The upper end can also miss, but only if all gaps are alike and have one sign. Its probability is subtracted
        first, since the upper end is never below the value. The rest is divided between the test of Σ |gap| and the two
        sides of the test of Σ gap (Bonferroni). The second side hardly matters unless the gaps are near 0.
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
    """The signed gaps of some cells, as shares of all samples, with the standard deviation of each."""

    gap: Tensor
    noise: Tensor
    joint: float = 0.0
    """The standard deviation of Σ |gap| if the noise of the cells is correlated; used where it is larger."""
    by_end: Noise | None = None
    """Gives the noise at each end of the interval; None means ``noise`` at both ends."""

    def bias(self, kappa: float) -> float:
        """Return the bias of Σ |gap| if the true gaps are the observed ones, reduced by κ standard deviations."""
        true = (self.gap.abs() - kappa * self.noise).clamp(min=0)
        return float(_moments(true, self.noise)[0] - true.sum())

    def deviation(self) -> float:
        """Return the standard deviation of Σ |gap| for independent noise in the cells."""
        return float(_moments(self.gap.abs(), self.noise)[1])

    def lowest(self, value: float, z: float, *, by_sum: bool = False) -> tuple[float, float]:
        """Return the lower end, and the standard deviation there.

        The lower end is the smallest Σ |θ| for which ``value`` is less than z standard deviations above its
        expectation. The true gaps θ are assumed to be the observed ones, reduced by κ standard deviations, with the
        smallest κ that passes. So bias and spread are those at the end itself; at 0, those of a calibrated model. With
        ``by_sum``, |Σ gap| must pass its test as well. It has no bias, and |Σ θ| is at most Σ |θ|, so it says more if
        most gaps have one sign.
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
        """Return the upper end, and the standard deviation there.

        The upper end is the largest Σ |θ| for which ``value`` is less than z standard deviations below its
        expectation. All gaps are assumed to be the same multiple of their noise, because noise adds least to such gaps.
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
    """Return the size at which ``room`` falls to 0 for the last time, and the deviation there, by interpolation."""
    last = min(int(((room > 0) * torch.arange(len(room), device=room.device)).max()), len(room) - 2)
    share = (room[last] / (room[last] - room[last + 1]).clamp(min=1e-300)).clamp(0, 1)
    return float(torch.lerp(size[last], size[last + 1], share)), float(deviation[last + 1])


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
            found[name] = _mean(summary[name], suite.proper, column, units)
    extra = few_errors(summary["accuracy"], suite.n if units is None else units.effective)
    gaps = {name: gaps_of(suite, units, adaptive=name == "aece") for name in ("ece", "aece")}
    found |= {name: _absolute(summary[name], of, z / normal_quantile(), extra) for name, of in gaps.items()}
    if not suite.weighted:
        found["rmsce"] = _root_mean_square(summary, suite, gaps["ece"], z)
    if units is None:
        cells = suite.confidences.cells()
        if suite.classwise is not None:
            found["classwise_ece"] = _classwise(summary["classwise_ece"], suite.classwise)
        for name, norm in (("ks", _ks_norm), ("smece", smooth_errors)):
            found[name] = _drawn(summary[name], cells, norm, z, extra)
    for name in ("rmsce", "classwise_ece", "ks", "smece"):
        if name in summary and name not in found:
            found[name] = Estimate(summary[name], note="no interval: needs independent rows of equal weight")
    found["mce"] = Estimate(summary["mce"], note="no interval holds for the largest of many gaps")
    return found


def units_of(suite: Suite, blocks: Blocks | None, level: float = LEVEL) -> Units | None:
    """Return the variation between units; None if the units are samples of equal weight."""
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
    """Mean, variance and third central moment of |size + Z| for a standard normal Z; above 10, those of size + Z."""
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
    """Return P(Z > z) for a standard normal Z, also where ``1 - ndtr(z)`` would round to 0."""
    return torch.erfc(z / math.sqrt(2)) / 2


def _quantile(z: float | Tensor, skewness: float | Tensor) -> float | Tensor:
    """Return the quantile of a skewed variable, in standard deviations, by the normal one (Cornish and Fisher 1938)."""
    return z + skewness * (z**2 - 1) / 6


def _absolute(value: float, gaps: Gaps, scale: float, extra: float = 0.0) -> Estimate:
    """Estimate Σ |gap|, with quantiles ``scale`` times those of a normal distribution.

    The bias depends on the true gaps. The two ends assume different gaps, and the distance between their biases is an
    unknown bias, for which the quantile allows. If the value is within the noise, the lower end is 0 and cannot miss.
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
    """Return the variance of the residual of each cell: as observed, and under calibration."""
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


def _classwise(value: float, classwise: ClasswiseBins) -> Estimate:
    residual, noise = classwise.residual, classwise.noise
    if residual.shape[0] == 2:  # both classes have the same noise
        residual, noise = residual[:1], noise[:1]
    scale = classwise.n * residual.shape[0]
    gaps = Gaps(residual.flatten() / scale, noise.flatten().sqrt() / scale)
    found = _absolute(value, gaps, 1.0)
    few = found.low == 0 and gaps.bias(1e6) > value / 2
    return replace(found, note="too few samples per class to tell it from 0") if few else found


def _root_mean_square(summary: dict[str, float], suite: Suite, gaps: Gaps, z: float) -> Estimate:
    """Estimate RMSCE by its square, minus the known noise S / m of each bin (Kumar et al., NeurIPS 2019)."""
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
    """Estimate a seminorm that has no closed form, from random draws of the noise.

    The unknown gaps are assumed to be a fraction of the observed ones. The lower end uses the largest fraction for
    which the value is at least z standard deviations above its expectation. The debiased estimate uses the fraction at
    which the value equals its expectation.
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
    # The largest cumulative sum varies most if it is the sum over all samples.
    most = float(noise.sum(1).std() / groups.n) if norm is _ks_norm else 0.0
    high = min(1.0, max(value + z * max(float(deviation[-1]), most), value + extra))
    # The fraction of the gaps at which the value equals its expectation.
    expected = mean <= value
    debiased = float((share * seen)[expected].max()) if bool(expected.any()) else 0.0
    return Estimate(value, min(max(debiased, low), high), low, high)


def _ks_norm(groups: Cells, residual: Tensor, _: float) -> Tensor:
    return residual.cumsum(-1).abs().amax(-1) / groups.n


def grouped(cells: Cells, groups: int = _GROUPS, bins: int = 1) -> Cells:
    """Return the samples in groups of nearly equal mass; no group crosses the edge of a bin."""
    group = bin_of(cells.mean[0], bins) * groups + cells.equal_mass(groups)[0]
    group = torch.unique_consecutive(group, return_inverse=True)[1]
    together = cells.map(lambda part: torch.bincount(group, weights=part[0])[None])
    return together[:, together.count[0] > 0]


def _share(share: float, suite: Suite, units: Units | None, column: int | None = None) -> Estimate:
    """Estimate a proportion with Wilson's interval: the accuracy, or a column of the blocks' proper sums."""
    size = suite.n if units is None else units.size(share, column)
    return Estimate(share, share, *wilson(share, size))


def _mean(value: float, proper: Proper, column: int, units: Units | None) -> Estimate:
    if not math.isfinite(value):
        return Estimate(value, note="no interval: a label had probability 0")
    if units is not None:
        margin = units.z * math.sqrt(units.variance(units.sums(column), value))
    elif (n := int(proper.n)) < 2:
        return Estimate(value, note="no interval: only one sample")
    else:
        variance = max(0.0, float(proper.squares[column]) / n - value**2) / (n - 1)
        margin = student_quantile(n - 1) * math.sqrt(variance)
    return Estimate(value, value, max(0.0, value - margin), value + margin)


class Units:
    """The sums of independent units, and how they vary between units.

    A unit can be any number of weighted samples. The mean over all samples is a ratio of two sums over units, so the
    noise that a unit adds is its own sum minus its share of the total.
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
        """The effective sample size for independent weighted samples (Kish 1965)."""

    def sums(self, column: int | None) -> Tensor:
        """Return the number of correct samples of each unit, or a column of its proper sums."""
        if column is None:
            return self.cells.right.sum(1)
        assert self._proper is not None
        return self._proper[:, column]

    def variance(self, sums: Tensor, mean: float) -> float:
        """Return the variance of a mean over all samples, given the sum of each unit."""
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
        """Return the gaps of the bins, as shares of all samples, and the noise of each unit, ``(units, bins)``."""
        index, residual = self.blocks.bin_of_cell(adaptive=adaptive), self.cells.residual
        sums = residual.new_zeros(self.number, self.blocks.bins).index_add_(1, index, residual)
        gap = sums.sum(0) / self.n
        return gap, (sums - self.held[:, None] * gap) / self.n

    def gaps(self, *, adaptive: bool) -> Gaps:
        """Return the gaps of the bins with their noise, at least that of independent samples under calibration."""
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
