"""Focal loss, and what its relatives share: cross-entropy times a weight made of the true class's probability."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acls.losses.base import About, Loss
from acls.losses.numerics import target_logs
from acls.losses.rule import Rule, gradient_rule
from acls.options import option
from acls.shapes import Positions


def mix(values: Tensor, at: Positions, weight: Tensor | None) -> Tensor:
    """Weigh the true class's values ``(M,)``; under soft labels, add up all classes' ``(M, K)`` by their shares."""
    if at.soft:
        return (values * (at.target if weight is None else at.target * weight)).sum(1)
    return values if weight is None else values * weight[at.target]


class FocalFamily(Loss):
    """A loss w(p_y) (-log p_y): subclasses write the factor w.

    The gradient is g(p_y) (softmax(z) - onehot(y)), with g = w - p_y w'(p_y) (-log p_y) where w carries a gradient:
    collinear with cross-entropy's, that is, label smoothing towards the model's own prediction.
    """

    data_name = "focal"

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        """Return w at log p and log(1 - p) of a class, elementwise."""
        raise NotImplementedError

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        log_p, log_rest = target_logs(at)
        return mix(-self.factor(log_p, log_rest) * log_p, at, weight)

    def rule(self, n_classes: int) -> Rule:
        return gradient_rule(self.excess, "(1 - g(p_y)) (1 - p_y)", "(1 - g(p_y)) p_j", pivot="true")


class Focal(FocalFamily):
    """Cross-entropy that cares less for what is already learnt: -(1 - p_y)^gamma log p_y.

    ``detach=True`` lets no gradient through the weight, as the code of Wang et al. (2021) does. Lin et al., ICCV 2017;
    for calibration Mukhoti et al., NeurIPS 2020. Gamma 0 is cross-entropy.
    """

    gamma: float = option(default=3.0, within="[0, inf)")
    detach: bool = False

    about = About("Focal loss", "Lin et al.", "ICCV", 2017)

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        weight = torch.exp(self.gamma * log_rest)
        return weight.detach() if self.detach else weight


class InverseFocal(FocalFamily):
    """Cross-entropy that cares more for what is already learnt: -(1 + p_y)^gamma log p_y.

    It trains towards sharper outputs, which post-hoc calibration then corrects. ``detach=True`` lets no gradient
    through the weight. Wang et al., NeurIPS 2021.
    """

    gamma: float = option(default=2.0, within="[0, inf)")
    detach: bool = False

    about = About("Inverse focal loss", "Wang et al.", "NeurIPS", 2021)

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        weight = (1 + log_p.exp()) ** self.gamma
        return weight.detach() if self.detach else weight


class FLSD(FocalFamily):
    """Focal loss whose gamma depends on p_y, the true class's probability: 5 below 0.2, 3 below 0.5, then ``gamma``.

    That is FLSD-53 with the default ``gamma=3``; gamma itself carries no gradient, and p_y = 0.2 falls to 3. The paper
    writes the predicted class's probability, the reference code uses the true class's. Mukhoti et al., NeurIPS 2020.
    """

    gamma: float = 3.0

    about = About("Sample-dependent focal loss", "Mukhoti et al.", "NeurIPS", 2020)

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        gamma = torch.where(log_p.detach() < math.log(0.5), 3.0, self.gamma)
        return torch.exp(torch.where(log_p.detach() < math.log(0.2), 5.0, gamma) * log_rest)
