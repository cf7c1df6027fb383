"""Multi-class difference of confidence and accuracy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acls.losses.base import About, Regularized
from acls.shapes import Positions


def class_gaps(at: Positions) -> Tensor:
    """Return, for each class, the batch's mean probability minus its share of the labels, ``(K,)``."""
    label = at.target if at.soft else F.one_hot(at.target, at.n_classes).to(at.logits.dtype)
    gap = at.logits.softmax(1) - label
    if at.valid is None:
        return gap.sum(0) / max(1, len(gap))
    return torch.where(at.valid.unsqueeze(1), gap, 0.0).sum(0) / at.valid.sum().clamp(min=1)


class MDCA(Regularized):
    """A base loss plus weight times the mean over classes of |mean probability - share of the labels| in the batch.

    Its smoothing function is a parabola in the confidence, twice that of CRL. The authors' base losses are
    cross-entropy, focal loss (gamma 1) and label smoothing: ``MDCA(base=Focal(gamma=1.0))``.
    Hebbalaguppe et al., CVPR 2022.
    """

    weight: float = 1.0

    couples_samples = True
    about = About("Multi-class difference of confidence and accuracy", "Hebbalaguppe et al.", "CVPR", 2022, kind="AR")

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        return {"mdca": self.weight * class_gaps(at).abs().mean()}
