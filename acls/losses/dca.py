"""Difference of confidence and accuracy."""

from __future__ import annotations

from torch import Tensor

from acls.losses.base import About, Regularized
from acls.losses.numerics import correctness, log_confidence
from acls.shapes import Positions, labelled_mean


def confidence_gap(at: Positions) -> Tensor:
    """Return the batch's mean confidence minus its accuracy, a scalar; accuracy carries no gradient."""
    log_r, predicted = log_confidence(at.logits)
    return labelled_mean(log_r.exp() - correctness(at, predicted), at.valid)


class DCA(Regularized):
    """A base loss plus |mean confidence - accuracy| of the batch, times ``weight``. Liang et al., 2020."""

    weight: float = 1.0

    couples_samples = True
    about = About("Difference of confidence and accuracy", "Liang et al.", "arXiv", 2020, kind="AR")

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        return {"dca": self.weight * confidence_gap(at).abs()}
