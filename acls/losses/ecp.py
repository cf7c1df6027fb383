"""Entropy penalty, also called confidence penalty (ECP)."""

from __future__ import annotations

from torch import Tensor

from acls.losses.base import About, Regularized
from acls.losses.rule import Rule, gradient_rule
from acls.shapes import Positions


class ECP(Regularized):
    """Cross-entropy minus the weighted entropy of the output: L - weight H(p), H = -sum_k p_k log p_k.

    ``class_mean=True`` divides the entropy by K, like the code that produced the published numbers (its effective
    weight is 0.01 for 10 classes and 0.0005 for 200). ``class_mean=False`` is the method as written in its paper.
    Pereyra et al., ICLR workshop 2017.
    """

    weight: float = 0.1
    class_mean: bool = True

    about = About("Entropy penalty", "Pereyra et al.", "ICLR workshop", 2017, kind="AR")

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        weight = self.weight / at.n_classes if self.class_mean else self.weight
        log_p = at.logits.log_softmax(1)
        entropy = -(log_p.exp() * log_p).sum(1)
        return {"entropy": -weight * entropy}

    def rule(self, n_classes: int) -> Rule | None:
        return self.rule_on_cross_entropy(gradient_rule(self.excess, "w p_ŷ (log p_ŷ + H)", "-w p_j (log p_j + H)"))
