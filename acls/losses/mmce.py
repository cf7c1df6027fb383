"""Maximum mean calibration error (MMCE), in O(N log N)."""

from __future__ import annotations

import torch
from torch import Tensor

from acls.losses.base import About, Regularized
from acls.losses.numerics import correctness, log_complement, log_confidence
from acls.options import option
from acls.shapes import Positions

# The reference implementations add this to denominators and under the square root. It affects the published values.
_COUNT_EPS = 1e-5
_ROOT_EPS = 1e-10


def kernel_form(u: Tensor, r: Tensor, bandwidth: float) -> Tensor:
    """Return sum_ij u_i u_j exp(-|r_i - r_j| / bandwidth) for r ``(n,)`` in ascending order and u ``(*, n)``.

    For i >= j the kernel is exp(-r_i/h) exp(r_j/h), so a cumulative sum replaces the n x n matrix. The computation is
    in float64, where the exponents of at most 1/h do not overflow.
    """
    earlier = torch.cumsum(u * torch.exp(r / bandwidth), -1)
    return 2 * (u * torch.exp(-r / bandwidth) * earlier).sum(-1) - u.square().sum(-1)


class MMCE(Regularized):
    """Cross-entropy plus a kernel estimate of the batch's calibration error: weight/N^2 sum_ij u_i u_j k(r_i, r_j).

    r is the confidence, u = correct - r and k(a, b) = exp(-|a - b| / bandwidth). This is the square of the paper's
    MMCE, without the root, like the code that produced the published numbers. ``weighted=True`` balances correct
    against wrong samples and takes the root. It divides each mean over pairs a second time by their number, as all
    implementations do. It is 0 if a batch has no wrong or no correct samples. Kumar et al., ICML 2018.
    """

    weight: float = 1.0
    bandwidth: float = option(default=0.4, within="[0.01, inf)")  # below 0.01, exp(1/bandwidth) may overflow
    weighted: bool = False

    couples_samples = True
    about = About("Maximum mean calibration error", "Kumar et al.", "ICML", 2018, kind="AR")

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        log_r, predicted = log_confidence(at.logits)
        confidence, order = log_r.double().exp().sort()
        doubt = log_complement(at.logits, predicted).double().exp()[order]
        correct = correctness(at, predicted).double()[order]
        counts = torch.ones_like(correct) if at.valid is None else at.valid[order].double()
        # u = correct - r. We compute 1 - r from its own logarithm, which avoids cancellation if r is close to 1.
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

        def divided(total: Tensor, number: Tensor) -> Tensor:
            return total / (number * (number + _COUNT_EPS)).clamp(min=_COUNT_EPS)

        squared = divided(both[0], right) + divided(both[1], wrong) - 2 * divided(cross, pairs)
        # Rounding can make the square slightly negative, and its root would be NaN.
        return torch.where(pairs > 0, (squared.clamp(min=0) + _ROOT_EPS).sqrt(), 0.0)
