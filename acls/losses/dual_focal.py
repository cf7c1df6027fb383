"""Dual focal loss."""

from __future__ import annotations

import torch
from torch import Tensor

from acls.losses.base import About, Loss
from acls.losses.focal import mix
from acls.losses.rule import Rule, gradient_rule
from acls.options import option
from acls.shapes import Positions


class DualFocal(Loss):
    """Focal loss on the lead over the next class: -(1 - p_y + p_j)^gamma log p_y, p_j the largest below p_y.

    Where no probability is below p_y, p_j is 0. Tao et al., ICML 2023; they tune gamma to network and data, 5 being
    their value for a ResNet-50 on CIFAR-10.
    """

    gamma: float = option(default=5.0, within="[1, inf)")  # below 1 the gradient has no bound

    data_name = "focal"
    about = About("Dual focal loss", "Tao et al.", "ICML", 2023)

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        log_p = at.logits.log_softmax(1)
        if at.soft:
            next_below = _next_below_each(log_p.exp())
        else:
            p, log_p = log_p.exp(), log_p.gather(1, at.target.unsqueeze(1))
            next_below = torch.where(p < log_p.exp(), p, 0.0).amax(1)
            log_p = log_p.squeeze(1)
        left = (1 - log_p.exp() + next_below).clamp(min=0)
        return mix(-(left**self.gamma) * log_p, at, weight)

    def rule(self, n_classes: int) -> Rule:
        return gradient_rule(self.excess, "1 - p_y + dL/dz_y", "p_j - dL/dz_j", pivot="true")


def _next_below_each(p: Tensor) -> Tensor:
    """Return, for every class, the largest probability of the row below its own, 0 where there is none. ``(M, K)``."""
    ordered, _ = p.sort(1)
    rank = torch.searchsorted(ordered.detach(), p.detach().contiguous())  # how many are strictly below
    padded = torch.cat([torch.zeros_like(p[:, :1]), ordered], dim=1)
    return padded.gather(1, rank)
