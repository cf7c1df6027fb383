"""Margin-based label smoothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from acls.errors import InputError
from acls.losses.base import About
from acls.losses.margin import MarginTerm, OnePass
from acls.losses.numerics import FAR
from acls.losses.rule import Rule, gradient_rule
from acls.options import option
from acls.shapes import Positions

_SCHEDULE = ("schedule", "mu", "max_weight", "step_size")


def mbls_penalty(logits: Tensor, *, margin: float = 10.0, weight: float = 0.1) -> Tensor:
    """Return weight/K sum_k max(0, z_ŷ - z_k - margin) of logits ``(N, K, *D)``, one value per position ``(N, *D)``.

    >>> mbls_penalty(torch.tensor([[12.0, 6.0, 2.0, -1.0]]), margin=6.0)
    tensor([0.2750])
    """
    excess = (logits.max(1, keepdim=True).values - logits - margin).relu()
    excess = torch.where(excess < FAR, excess, 0.0)  # a masked class exceeds no margin
    return weight / logits.shape[1] * excess.sum(1)


class MbLS(OnePass):
    """Cross-entropy plus weight/K sum_k max(0, z_ŷ - z_k - margin): logits may differ by the margin for free.

    `mbls_penalty` is the second part. The gradient flows through the largest logit too, so the predicted class is
    penalised, contrary to what the ACLS paper's Table 2 says. The published margin is 6 on CIFAR-10 and 10 elsewhere.
    Liu et al., CVPR 2022.
    """

    weight: float = 0.1
    margin: float = option(default=10.0, within="[0, inf)")

    about = About("Margin-based label smoothing", "Liu et al.", "CVPR", 2022, kind="CR")

    @classmethod
    def upgraded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Drop the weight schedule that version 0.1.0 recorded, unless it changed the weight."""
        if fields.get("schedule", "constant") != "constant":
            raise InputError(
                f"MbLS(schedule={fields['schedule']!r}): weight schedules were removed after version 0.1.0"
            )
        return {name: value for name, value in fields.items() if name not in _SCHEDULE}

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        return {"margin": mbls_penalty(at.logits, margin=self.margin, weight=self.weight)}

    def fused_term(self, n_classes: int) -> MarginTerm:
        return MarginTerm(margin=self.margin, down=0.0, up=self.weight / n_classes, power=1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.pop(f"{prefix}current_weight", None)  # a buffer of version 0.1.0
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def rule(self, n_classes: int) -> Rule | None:
        conditions = ("max z - min z > M", "z_ŷ - z_j > M")
        return self.rule_on_cross_entropy(gradient_rule(self.excess, "w/K #{k: z_ŷ - z_k > M}", "w/K", conditions))
