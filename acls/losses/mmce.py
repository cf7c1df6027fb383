"""Maximum mean calibration error, in O(N log N)."""

from __future__ import annotations

import torch
from torch import Tensor

from acls.losses.base import About, Regularized
from acls.losses.numerics import correctness, log_complement, log_confidence
from acls.options import option
from acls.shapes import Positions

# What the reference codes add to their denominators and under their square root; part of the published values.
_COUNT_EPS = 1e-5
_ROOT_EPS = 1e-10


def kernel_form(u: Tensor, r: Tensor, bandwidth: float) -> Tensor:
    """Return sum_ij u_i u_j exp(-|r_i - r_j| / bandwidth) for r ``(n,)`` in ascending order and u ``(*, n)``.

    For i >= j the kernel is exp(-r_i/h) exp(r_j/h), so one running sum replaces the n x n matrix. In float64, where
    the exponents, at most 1/h, are safe.
    """
    earlier = torch.cumsum(u * torch.exp(r / bandwidth), -1)
    return 2 * (u * torch.exp(-r / bandwidth) * earlier).sum(-1) - u.square().sum(-1)


class MMCE(Regularized):
    """Cross-entropy plus a kernel estimate of the batch's calibration error: weight/N^2 sum_ij u_i u_j k(r_i, r_j).

    r is the confidence, u = correct - r and k(a, b) = exp(-|a - b| / bandwidth). It is the square of the paper's MMCE,
    without a root, as the code behind the published numbers has it. ``weighted=True`` sets the correct against the
    wrong and takes the root, with every pair mean divided a second time by its count, as all implementations do; it is
    0 in a batch without wrong or without correct samples. Kumar et al., ICML 2018.
    """

    weight: float = 1.0
    bandwidth: float = option(default=0.4, within="[0.01, inf)")  # below, exp(1/bandwidth) leaves the range of floats
    weighted: bool = False

    couples_samples = True
    about = About("Maximum mean calibration error", "Kumar et al.", "ICML", 2018, kind="AR")

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        log_r, predicted = log_confidence(at.logits)
        confidence, order = log_r.double().exp().sort()
        doubt = log_complement(at.logits, predicted).double().exp()[order]
        correct = correctness(at, predicted).double()[order]
        counts = torch.ones_like(correct) if at.valid is None else at.valid[order].double()
        # u = correct - r, with 1 - r from its own logarithm: no cancellation where the network is sure.
        above, below = counts * correct * doubt, counts * (1 - correct) * confidence
        if self.weighted:
            value = self._weighted(above, below, confidence, (counts * correct).sum(), (counts * (1 - correct)).sum())
        else:
            value = kernel_form(above - below, confidence, self.bandwidth) / counts.sum().clamp(min=1).square()
        return {"mmce": self.weight * value.to(at.logits.dtype)}

    def _weighted(self, above: Tensor, below: Tensor, r: Tensor, n_correct: Tensor, n_wrong: Tensor) -> Tensor:
        both = kernel_form(torch.stack([above, below, above - below]), r, self.bandwidth)
        cross = (both[0] + both[1] - both[2]) / 2
        right, wrong, pairs = n_correct.square(), n_wrong.square(), n_correct * n_wrong
        squared = (
            both[0] / (right * (right + _COUNT_EPS)).clamp(min=_COUNT_EPS)
            + both[1] / (wrong * (wrong + _COUNT_EPS)).clamp(min=_COUNT_EPS)
            - 2 * cross / (pairs * (pairs + _COUNT_EPS)).clamp(min=_COUNT_EPS)
        )
        # Rounding can leave a tiny negative square, whose root would be NaN.
        return torch.where(pairs > 0, (squared.clamp(min=0) + _ROOT_EPS).sqrt(), 0.0)
