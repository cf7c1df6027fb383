"""Cross-entropy, the loss that the others regularise."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from acls.losses.base import About, Loss
from acls.losses.rule import Rule
from acls.shapes import Positions


class CE(Loss):
    """Cross-entropy: -log p_y, where p is the softmax of the logits. The same number as `torch.nn.CrossEntropyLoss`."""

    about = About("Cross-entropy", "Good", "J. R. Stat. Soc. B", 1952)

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        return F.cross_entropy(at.logits, at.target, weight=weight, reduction="none")

    def rule(self, n_classes: int) -> Rule:
        return Rule()
