"""The Brier score as a loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from acls.losses.base import About, Loss
from acls.losses.rule import Rule, Side, View
from acls.shapes import Positions


class Brier(Loss):
    """The squared distance between probabilities and label: sum_k (p_k - q_k)^2. Brier, Mon. Weather Rev. 1950."""

    data_name = "brier"
    about = About("Brier score", "Brier", "Mon. Weather Rev.", 1950)

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        label = at.target if at.soft else F.one_hot(at.target, at.n_classes).to(at.logits.dtype)
        values = (at.logits.softmax(1) - label).square().sum(1)
        if weight is None:
            return values
        return values * ((label * weight).sum(1) if at.soft else weight[at.target])

    def rule(self, n_classes: int) -> Rule:
        return Rule(
            pivot="true",
            down=Side(lambda at: 1 - at.p + _gradient(at), formula="1 - p_y + dL/dz_y"),
            up=Side(lambda at: at.p - _gradient(at), formula="p_j - dL/dz_j"),
        )


def _gradient(at: View) -> Tensor:
    """Return dL/dz_j = 2 p_j (e_j - sum_k p_k e_k), e = p - q."""
    error = at.p - F.one_hot(at.y.squeeze(1), at.n_classes).to(at.p.dtype)
    return 2 * at.p * (error - (at.p * error).sum(1, keepdim=True))
