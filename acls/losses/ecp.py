"""Entropy (confidence) penalty."""

from __future__ import annotations

from torch import Tensor

from acls.losses.base import About, Regularized
from acls.losses.rule import Rule, Side
from acls.shapes import Positions


class ECP(Regularized):
    """Cross-entropy less a share of the output's entropy: L - weight H(p), H = -sum_k p_k log p_k.

    ``class_mean=True`` divides the entropy by K, as the code behind the published numbers does (its effective weight
    is 0.01 for 10 classes and 0.0005 for 200); ``False`` is the method as written. Pereyra et al., ICLR workshop 2017.
    """

    weight: float = 0.1
    class_mean: bool = True

    about = About("Entropy penalty", "Pereyra et al.", "ICLR workshop", 2017, kind="AR")

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        log_p = at.logits.log_softmax(1)
        entropy = -(log_p.exp() * log_p).sum(1)
        return {"entropy": -self._weight(at.n_classes) * entropy}

    def rule(self, n_classes: int) -> Rule | None:
        weight = self._weight(n_classes)
        return self.rule_on_cross_entropy(
            Rule(
                down=Side(lambda at: weight * at.p * (at.log_p + at.entropy), formula="w p_ŷ (log p_ŷ + H)"),
                up=Side(lambda at: -weight * at.p * (at.log_p + at.entropy), formula="-w p_j (log p_j + H)"),
            )
        )

    def _weight(self, n_classes: int) -> float:
        return self.weight / n_classes if self.class_mean else self.weight
