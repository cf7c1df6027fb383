"""Inverse focal loss."""

from __future__ import annotations

from torch import Tensor

from acls.errors import InputError
from acls.losses.base import About
from acls.losses.focal import FocalFamily, power_gradient_factor
from acls.losses.rule import View


class InverseFocal(FocalFamily):
    """Cross-entropy that cares more for what is already learnt: -(1 + p_y)^gamma log p_y.

    It trains towards sharper outputs, which post-hoc calibration then corrects. ``detach=True`` lets no gradient
    through the weight. Wang et al., NeurIPS 2021.
    """

    gamma: float = 2.0
    detach: bool = False

    about = About("Inverse focal loss", "Wang et al.", "NeurIPS", 2021)

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise InputError(f"gamma={self.gamma} is negative: for (1 - p)^gamma use Focal")
        super().__post_init__()

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        weight = (1 + log_p.exp()) ** self.gamma
        return weight.detach() if self.detach else weight

    def gradient_factor(self, at: View) -> Tensor:
        if self.detach:
            return (1 + at.p_true) ** self.gamma
        return power_gradient_factor(at, self.gamma, sign=-1.0)
