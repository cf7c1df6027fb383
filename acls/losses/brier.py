"""The Brier score as a loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from acls.losses.base import About, Loss
from acls.losses.rule import Rule, gradient_rule
from acls.shapes import Positions


class Brier(Loss):
    """Squared distance between the probabilities and the label: sum_k (p_k - q_k)^2. Brier, Mon. Weather Rev. 1950."""

    data_name = "brier"
    about = About("Brier score", "Brier", "Mon. Weather Rev.", 1950)

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        label = at.target if at.soft else F.one_hot(at.target, at.n_classes).to(at.logits.dtype)
        values = (at.logits.softmax(1) - label).square().sum(1)
        return values if weight is None else values * (label * weight).sum(1)

    def rule(self, n_classes: int) -> Rule:
        return gradient_rule(self.excess, "1 - p_y + dL/dz_y", "p_j - dL/dz_j", pivot="true")
