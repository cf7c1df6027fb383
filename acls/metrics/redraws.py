"""Redraws: labels drawn from the model's own probabilities, to know what a calibrated model would show."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acls.metrics.batch import Batch
from acls.metrics.distributions import chi_squared_tail
from acls.metrics.tally import Tally

DRAWS = 199
"""Labels drawn for each sample."""
_ROWS = 1 << 16  # samples that labels are drawn for: beyond, the shape of a sum's distribution changes no more
_TINY = 1e-37


@dataclass(frozen=True, eq=False)
class Redraws(Tally):
    """K + 1 scores of all probabilities, and the same scores of labels drawn from those probabilities.

    For each class k Σ ([y = k] - q_k); last Σ (log q_y - Σ_k q_k log q_k), negative where the model is surer than it
    should be. All have mean 0 if the model is calibrated.
    """

    whole = True

    scores: Tensor
    variance: Tensor
    """Of the scores, if the model is calibrated."""
    drawn_variance: Tensor
    """The same over the samples that labels were drawn for: the first 65,536."""
    draws: Tensor
    """``(DRAWS, K + 1)``: the scores of each draw."""

    @classmethod
    def count(cls, batch: Batch, first: int = 0) -> Redraws:
        """The scores of one batch, whose first sample has number ``first`` in the data set.

        Draws depend on the numbers, so a data set gives the same ones however it is cut.
        """
        n_classes, device = batch.scores.shape[1], batch.scores.device
        keys, multipliers = _keys(batch, first), _mixed(torch.arange(1, DRAWS + 1, device=device)) | 1
        scores, variance, drawn_variance = torch.zeros(3, n_classes + 1, dtype=torch.float64, device=device)
        draws = torch.zeros(DRAWS, n_classes + 1, dtype=torch.float64, device=device)
        replicate = torch.arange(DRAWS, device=device) * (n_classes + 1)
        start = 0
        for q, target in batch.probabilities():
            log = q.clamp(min=_TINY).log_()
            mean, spread = _moments(q, log)
            own = log.gather(1, target[:, None]).sum(dtype=torch.float64)
            scores += torch.cat([torch.bincount(target, minlength=n_classes), own[None]]) - mean
            variance += spread
            rows = max(0, min(q.shape[0], _ROWS - first - start))
            if 0 < rows < q.shape[0]:
                q, log = q[:rows], log[:rows]
                mean, spread = _moments(q, log)
            if rows:
                u = (keys[start : start + rows, None] * multipliers).bitwise_right_shift_(40).add_(1 << 23)
                sums = q.cumsum(1)
                place = u.to(q.dtype).mul_(2.0**-24).mul_(sums[:, -1:])
                label = torch.searchsorted(sums, place, right=True).clamp_(max=n_classes - 1)
                draws[:, -1] += log.gather(1, label).sum(0, dtype=torch.float64)
                index = label.add_(replicate).flatten()
                draws += torch.bincount(index, minlength=draws.numel()).view_as(draws) - mean
                drawn_variance += spread
            start += q.shape[0]
        return cls(scores, variance, drawn_variance, draws)

    def summary(self) -> dict[str, float]:
        return {}

    def tests(self) -> dict[str, tuple[float, float]]:
        """Squared standardised scores, ``log`` and the sum over ``classes``, each with the p of a calibrated model."""
        tiny = 1e-300
        observed = self.scores**2 / self.variance.clamp(min=tiny)
        drawn = self.draws**2 / self.drawn_variance.clamp(min=tiny)
        known = self.drawn_variance[:-1] > 0
        log, classes = float(observed[-1]), float(observed[:-1][known].sum())
        drawn_classes = drawn[:, :-1][:, known].sum(1)
        return {"log": (log, simulated_p(log, drawn[:, -1])), "classes": (classes, simulated_p(classes, drawn_classes))}


def _moments(q: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each class's number and of the sum of log q_y, for labels drawn from q."""
    entropy = q * log
    mean = entropy.sum(1, dtype=torch.float64)
    spread = entropy.mul_(log).sum(1, dtype=torch.float64).sub_(mean**2).clamp_(min=0).sum()
    number = q.sum(0, dtype=torch.float64)
    return torch.cat([number, mean.sum()[None]]), torch.cat(
        [number - q.square().sum(0, dtype=torch.float64), spread[None]]
    )


def simulated_p(statistic: float, simulated: Tensor) -> float:
    """The share of simulated statistics at least as large, itself included.

    Where none is, the tail of the gamma distribution of the same mean and variance says how much less it is.
    """
    draws = simulated.shape[0]
    beyond = int((simulated >= statistic * (1 - 1e-9)).sum())
    p = (beyond + 1) / (draws + 1)
    mean, variance = float(simulated.mean()), float(simulated.var())
    if beyond or variance <= 0:
        return p
    return min(p, chi_squared_tail(2 * statistic * mean / variance, 2 * mean**2 / variance))


def _keys(batch: Batch, first: int) -> Tensor:
    """A random number for each sample, from its place and what is known of it."""
    top = batch.top
    place = torch.arange(first, first + len(batch), device=batch.target.device)
    content = top.confidence.double().view(torch.int64) + (0 if top.nll is None else top.nll.double().view(torch.int64))
    return _mixed(_mixed(place) + content + batch.target)


def _mixed(numbers: Tensor) -> Tensor:
    """Numbers scattered over 64 bits (the finaliser of splitmix64)."""
    mixed = numbers * -7046029254386353131
    mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return mixed ^ ((mixed >> 31) & 0x1FFFFFFFF)
