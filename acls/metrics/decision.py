"""Choose a confidence threshold above which predictions are accepted, with a bound on their error rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acls.errors import InputError
from acls.metrics.confidences import Confidences
from acls.metrics.distributions import LEVEL
from acls.metrics.resampling import Blocks

FEWEST_UNITS = 30
"""The minimum number of units (for example images) for a reliable estimate of their variance."""
_RATIO = 1.03  # each threshold accepts about 3 % more samples than the previous one
_STARTS = 24  # every 24th threshold is tested in any case; it accepts twice as many samples as the one 24 before
_LEAST = 50  # every threshold accepts at least 1 / 50 of all samples


@dataclass(frozen=True)
class Decision:
    """Accept predictions at or above ``threshold``: at most ``max_error`` of those are wrong, at confidence ``level``.

    If no threshold satisfies the bound with these samples, the threshold is None and nothing is accepted.
    """

    threshold: float | None
    accepted: int
    wrong: int
    """Errors among the accepted samples."""
    n: int
    max_error: float
    level: float = LEVEL

    @property
    def share(self) -> float:
        """The fraction of samples that are accepted."""
        return self.accepted / self.n

    def as_json(self) -> dict[str, Any]:
        """Return the numbers and the sentence as plain values."""
        return {**vars(self), "share": self.share, "text": str(self)}

    def __str__(self) -> str:
        bound = f"{100 * self.level:g} % bound"
        if self.threshold is None:
            return (
                f"Accept nothing automatically: with n = {self.n} no threshold has an error of at most "
                f"{100 * self.max_error:g} % ({bound}). That takes more labelled samples, a larger error, or a better "
                "model."
            )
        digits = max(2, 2 - math.floor(math.log10(1 - self.threshold))) if self.threshold < 1 else 2
        return (
            f"Accept automatically at or above {self.threshold:.{digits}f}: {100 * self.share:.0f} % of the cases, at "
            f"most {100 * self.max_error:g} % of them wrong ({bound}; here {self.wrong} of {self.accepted})."
        )


def decide(
    confidences: Confidences, blocks: Blocks | None = None, *, max_error: float, level: float = LEVEL
) -> Decision:
    """Return the threshold that accepts most samples with at most ``max_error`` wrong, at confidence ``level``.

    Samples are independent. With ``blocks``, units are independent instead, for example images with many pixels. The
    same samples choose the threshold and bound its error, so the bound must hold for many thresholds at once. They are
    tested from strict to lenient. The error probability 1 - level is divided among a few of them, and each rejection
    passes its part on to the next test (the fallback procedure of Wiens, Pharmaceutical Statistics 2003). Each test is
    the exact binomial test (Clopper and Pearson 1934). For units it uses the number of independent samples with the
    same variance and needs at least `FEWEST_UNITS` units.

    >>> confidence = torch.linspace(0, 1, 1000)
    >>> right = (confidence > 0.3).long()
    >>> decide(Confidences.of_triples(confidence, torch.ones_like(right), right), max_error=0.02).accepted
    688
    """
    if not (0 < max_error < 1 and 0 < level < 1):
        raise InputError(f"expected max_error and level between 0 and 1, got {max_error} and {level}")
    if confidences.weighted:
        raise InputError(
            "expected samples of equal weight to choose a threshold, got weights: the bound does not hold for them"
        )
    n = confidences.rows
    if n == 0:
        raise InputError("expected at least one labelled sample to choose a threshold, got none")
    cells = confidences.cells()
    lower, count, right = (cells.confidence[0] if cells.lower is None else cells.lower), cells.count, cells.right
    if blocks is not None:
        lower = blocks.lower()
        count, _, right = blocks.cells[blocks.units > 0].unbind(-1)
    lower, count, wrong = (part.double().cpu().flip(-1) for part in (lower, count, count - right))
    # A threshold cannot lie at an empty cell or at a cell that ties with the next.
    last = torch.cat([lower[1:] < lower[:-1], torch.ones(1, dtype=torch.bool)])
    held = count.sum(0).cumsum(0)
    ranks = held.new_tensor(_ranks(n, max_error, level, independent=blocks is None))
    cuts = torch.searchsorted(held[last], ranks).clamp(max=int(last.sum()) - 1).unique()  # type: ignore[no-untyped-call]
    cuts = last.nonzero()[:, 0][cuts]
    accepted, errors = (part.cumsum(1)[:, cuts] for part in (count, wrong))
    nothing = Decision(None, 0, 0, n, max_error, level)
    if blocks is not None and len(count) < FEWEST_UNITS:
        return nothing
    p = _binomial(*((errors[0], accepted[0]) if blocks is None else _effective(errors, accepted)), max_error)
    best, carried, starts = None, 0.0, math.ceil(len(cuts) / _STARTS)
    for place, value in enumerate(p.tolist()):
        allowed = carried + ((1 - level) / starts if place % _STARTS == 0 else 0.0)
        carried = allowed if value <= allowed else 0.0
        best = place if carried else best
    if best is None:
        return nothing
    total = [int(part[:, best].sum().round()) for part in (accepted, errors)]
    return Decision(float(lower[cuts[best]]), total[0], total[1], n, max_error, level)


def _ranks(n: int, max_error: float, level: float, *, independent: bool) -> list[int]:
    """Return how many samples each threshold accepts, in steps of 3 %, from the smallest number that could pass."""
    fewest = 1.6 * math.log(1 - level) / math.log(1 - max_error) if independent else 1.0
    rank, found = max(fewest, n / _LEAST), [n]
    while rank < n:
        found.append(math.ceil(rank))
        rank *= _RATIO
    return sorted(set(found))


def _binomial(wrong: Tensor, count: Tensor, rate: float) -> Tensor:
    """Return P(at most ``wrong`` errors in ``count`` samples) for the error probability ``rate``; 1 above the mean."""
    found = []
    for w, m in zip(wrong.round().tolist(), count.tolist(), strict=True):
        if w > m * rate:
            found.append(wrong.new_tensor(1.0))
            continue
        # Below the mean, the terms decrease so fast that those beyond 40 standard deviations are negligible.
        k = torch.arange(max(0, math.floor(w - 40 * math.sqrt(m * rate)) - 40), w + 1, dtype=torch.float64)
        ways = math.lgamma(m + 1) - torch.lgamma(k + 1) - torch.lgamma(m - k + 1)
        found.append(torch.logsumexp(ways + k * math.log(rate) + (m - k) * math.log1p(-rate), 0).exp())
    return torch.stack(found)


def _effective(wrong: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return errors and samples as numbers of independent samples with the same variance, rounded up and down.

    With error rate p = Σ wrong / Σ count there are p (1 - p) / var(p) such samples, where var(p) is the variance
    between units. The factor (U - 3) / (U - 1) accounts for the estimation of that variance. Without errors there are U
    samples (Korn and Graubard, Survey Methodology 1998).
    """
    units = wrong.shape[0]
    m, p = count.sum(0), wrong.sum(0) / count.sum(0)
    variance = ((wrong - p * count) ** 2).sum(0) * units / (units - 1) / m**2
    effective = torch.where(p > 0, p * (1 - p) / variance * (units - 3) / (units - 1), float(units))
    effective = torch.minimum(effective, m).floor()
    return (p * effective).ceil(), effective
