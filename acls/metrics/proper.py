"""Proper scores (NLL and Brier score), which only the true probabilities minimise, and accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acls.metrics.batch import Batch
from acls.metrics.tally import Tally, ratio


@dataclass(frozen=True, eq=False)
class Proper(Tally):
    """Sums of the negative log-likelihood, the Brier score and hits.

    NLL = -mean log p_y. Brier = mean over samples of Σ_k (p_k - [y = k])², summed, not averaged, over the classes: 0
    for a perfect prediction, 2 for certainty of a wrong class (Brier, Monthly Weather Review 1950).
    For two classes that is twice what scikit-learn's ``brier_score_loss`` returns by default.
    """

    whole = True

    n: Tensor
    right: Tensor
    in_five: Tensor
    nll_sum: Tensor
    brier_sum: Tensor
    squares: Tensor
    """Sums of the squares of both, ``(2,)``, from which their standard errors follow."""

    @classmethod
    def count(cls, batch: Batch) -> Proper:
        scores, top = batch.scores, batch.top
        assert top.label_in_five is not None
        assert top.nll is not None
        assert top.brier is not None
        both = torch.stack([top.nll, top.brier]).double()
        nll_sum, brier_sum = batch.sum(both)
        return cls(
            n=batch.sum(torch.ones(len(batch), dtype=torch.int64, device=scores.device)),
            right=batch.sum(top.right),
            in_five=batch.sum(top.label_in_five),
            nll_sum=nll_sum,
            brier_sum=brier_sum,
            squares=batch.sum(both.square()),
        )

    def summary(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("accuracy", "top5", "nll", "brier")}

    @property
    def accuracy(self) -> float:
        """Fraction of samples whose predicted class is the true one. If scores tie, the lowest class is predicted."""
        return ratio(self.right, self.n)

    @property
    def top5(self) -> float:
        """Fraction of samples for which fewer than five other classes have a score at least as high as the true one."""
        return ratio(self.in_five, self.n)

    @property
    def nll(self) -> float:
        return ratio(self.nll_sum, self.n)

    @property
    def brier(self) -> float:
        return ratio(self.brier_sum, self.n)
