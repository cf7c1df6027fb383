"""Label smoothing."""

from __future__ import annotations

import torch
from torch import Tensor

from acls.losses.base import About, Loss
from acls.losses.numerics import FAR
from acls.losses.rule import Rule, Side
from acls.options import option
from acls.shapes import Positions


class LabelSmoothing(Loss):
    """Cross-entropy with a smoothed label: -sum_k q'_k log p_k, q' = (1 - epsilon) q + epsilon/K.

    ``spread="all"`` adds epsilon/K to every class, including the true one, like torch and the paper's Eq. 4.
    ``"others"`` adds epsilon/(K - 1) to the other classes only, like the code of the MDCA authors. Both give the same
    loss if the epsilon of ``"others"`` is (K - 1)/K times that of ``"all"``. Szegedy et al., CVPR 2016.
    """

    epsilon: float = option(default=0.05, within="[0, 1]")
    spread: str = option(default="all", choices=("all", "others"))

    data_name = "smoothed_ce"
    about = About("Label smoothing", "Szegedy et al.", "CVPR", 2016)

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        epsilon = self._epsilon_over_all(at.n_classes)
        log_p = at.logits.log_softmax(1)
        if weight is not None:
            log_p = log_p * weight
        fit = (log_p * at.target).sum(1) if at.soft else log_p.gather(1, at.target.unsqueeze(1)).squeeze(1)
        spread = torch.where(log_p > -FAR, log_p, 0.0).sum(1)  # nothing is added to a masked class
        return -(1 - epsilon) * fit - epsilon / at.n_classes * spread

    def rule(self, n_classes: int) -> Rule:
        lifted = self._epsilon_over_all(n_classes) / n_classes
        lowered = lifted * (n_classes - 1)
        return Rule(
            pivot="true",
            down=Side(lambda view: view.z.new_full(view.z.shape, lowered), formula="ε (1 - 1/K)"),
            up=Side(lambda view: view.z.new_full(view.z.shape, lifted), formula="ε / K"),
        )

    def _epsilon_over_all(self, n_classes: int) -> float:
        return self.epsilon if self.spread == "all" else min(1.0, self.epsilon * n_classes / (n_classes - 1))
