"""Sample-dependent focal loss (FLSD-53)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acls.losses.base import About
from acls.losses.focal import FocalFamily, power_gradient_factor
from acls.losses.rule import View


class FLSD(FocalFamily):
    """Focal loss whose gamma depends on p_y, the true class's probability: 5 below 0.2, 3 below 0.5, then ``gamma``.

    That is FLSD-53 with the default ``gamma=3``; gamma itself carries no gradient, and p_y = 0.2 falls to 3. The paper
    writes the predicted class's probability, the reference code uses the true class's. Mukhoti et al., NeurIPS 2020.
    """

    gamma: float = 3.0

    about = About("Sample-dependent focal loss", "Mukhoti et al.", "NeurIPS", 2020)

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        return torch.exp(self._gamma(log_p.detach()) * log_rest)

    def gradient_factor(self, at: View) -> Tensor:
        return power_gradient_factor(at, self._gamma(at.log_p_true))

    def _gamma(self, log_p: Tensor) -> Tensor:
        gamma = torch.where(log_p < math.log(0.5), 3.0, self.gamma)
        return torch.where(log_p < math.log(0.2), 5.0, gamma)
