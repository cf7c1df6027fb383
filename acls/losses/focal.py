"""Focal loss, and what its relatives share: cross-entropy times a weight made of the true class's probability."""

from __future__ import annotations

import torch
from torch import Tensor

from acls.errors import InputError
from acls.losses.base import About, Loss
from acls.losses.numerics import target_logs
from acls.losses.rule import Rule, Side, View
from acls.shapes import Positions


def mix(values: Tensor, at: Positions, weight: Tensor | None) -> Tensor:
    """Weigh the true class's values ``(M,)``; under soft labels, add up all classes' ``(M, K)`` by their shares."""
    if at.soft:
        return (values * (at.target if weight is None else at.target * weight)).sum(1)
    return values if weight is None else values * weight[at.target]


class FocalFamily(Loss):
    """A loss w(p_y) (-log p_y): subclasses write the factor w, here and in its gradient's closed form.

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

    def gradient_factor(self, at: View) -> Tensor:
        """Return g ``(M, 1)``: the gradient is g times cross-entropy's."""
        raise NotImplementedError

    def rule(self, n_classes: int) -> Rule:
        return Rule(
            pivot="true",
            down=Side(lambda at: (1 - self.gradient_factor(at)) * (1 - at.p), formula="(1 - g(p_y)) (1 - p_y)"),
            up=Side(lambda at: (1 - self.gradient_factor(at)) * at.p, formula="(1 - g(p_y)) p_j"),
        )


def power_gradient_factor(at: View, gamma: Tensor | float, sign: Tensor | float = 1.0) -> Tensor:
    """Return g of the weight (1 - sign p)^gamma: (1 - s p)^gamma - s gamma p (1 - s p)^(gamma - 1) log p."""
    p, log_p = at.p_true, at.log_p_true
    left = 1 - sign * p
    return left**gamma - sign * gamma * p * left ** (gamma - 1) * log_p


class Focal(FocalFamily):
    """Cross-entropy that cares less for what is already learnt: -(1 - p_y)^gamma log p_y.

    ``detach=True`` lets no gradient through the weight, as the code of Wang et al. (2021) does. Lin et al., ICCV 2017;
    for calibration Mukhoti et al., NeurIPS 2020. Gamma 0 is cross-entropy.
    """

    gamma: float = 3.0
    detach: bool = False

    about = About("Focal loss", "Lin et al.", "ICCV", 2017)

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise InputError(f"gamma={self.gamma} is negative: for (1 + p)^gamma use InverseFocal")
        super().__post_init__()

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        weight = torch.exp(self.gamma * log_rest)
        return weight.detach() if self.detach else weight

    def gradient_factor(self, at: View) -> Tensor:
        if self.detach:
            return (1 - at.p_true) ** self.gamma
        return power_gradient_factor(at, self.gamma)
