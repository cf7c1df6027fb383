"""Difference of confidence and accuracy, for the predicted class (DCA) and for every class (MDCA)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acls.losses.base import About, Regularized
from acls.losses.numerics import correctness, log_confidence
from acls.shapes import Positions, labelled_mean


def confidence_gap(at: Positions) -> Tensor:
    """Return the mean confidence of the batch minus its accuracy, a scalar. The accuracy carries no gradient."""
    log_r, predicted = log_confidence(at.logits)
    return labelled_mean(log_r.exp() - correctness(at, predicted), at.valid)


class DCA(Regularized):
    """A base loss plus ``weight`` times |mean confidence - accuracy| of the batch. Liang et al., 2020."""

    weight: float = 1.0

    couples_samples = True
    about = About("Difference of confidence and accuracy", "Liang et al.", "arXiv", 2020, kind="AR")

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        return {"dca": self.weight * confidence_gap(at).abs()}


def class_gaps(at: Positions) -> Tensor:
    """Return for each class its mean probability in the batch minus its label frequency, ``(K,)``."""
    label = at.target if at.soft else F.one_hot(at.target, at.n_classes).to(at.logits.dtype)
    gap = at.logits.softmax(1) - label
    if at.valid is None:
        return gap.sum(0) / max(1, len(gap))
    return torch.where(at.valid.unsqueeze(1), gap, 0.0).sum(0) / at.valid.sum().clamp(min=1)


class MDCA(Regularized):
    """A base loss plus ``weight`` times the mean over classes of |mean probability - label frequency| in the batch.

    Its smoothing function is a parabola in the confidence, twice that of CRL. The authors use cross-entropy, focal loss
    (gamma 1) and label smoothing as base losses, for example ``MDCA(base=Focal(gamma=1.0))``.
    Hebbalaguppe et al., CVPR 2022.
    """

    weight: float = 1.0

    couples_samples = True
    about = About("Multi-class difference of confidence and accuracy", "Hebbalaguppe et al.", "CVPR", 2022, kind="AR")

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        return {"mdca": self.weight * class_gaps(at).abs().mean()}
