"""Correctness ranking loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acls.errors import InputError
from acls.losses.base import About
from acls.losses.history import Ranked, next_in_batch, sample_means
from acls.losses.numerics import log_confidence
from acls.losses.rule import Rule, Side, View
from acls.options import option
from acls.shapes import Positions, labelled_mean


class CRL(Ranked):
    """Cross-entropy plus a loss that ranks samples by confidence as they rank by how often they were correct so far.

    Each sample i is compared with the next in the batch: weight mean_i max(0, -t (k_i - k_{i+1}) + m), where c is the
    correctness so far on a scale from 0 to 1, t = sgn(c_i - c_{i+1}), m = |c_i - c_{i+1}| (0 with ``margin=False``, the
    ACLS paper's Eq. 18) and k the confidence: the largest probability (``target="softmax"``), its lead over the second
    (``"margin"``) or the negative entropy over log K (``"entropy"``). Equal correctness compares nothing, so the first
    epoch is plain cross-entropy. Dense maps rank images by their mean confidence.

    ``condition="margin"`` is the ACLS paper's ablation: the same smoothing function where z_ŷ - z_j > ``logit_margin``;
    it needs no history, and its gradient is no loss's, so its value is that of the samples it acts on.
    Moon et al., ICML 2020.
    """

    weight: float = 1.0
    target: str = option(default="softmax", choices=("softmax", "margin", "entropy"))
    margin: bool = True
    condition: str = option(default="ranking", choices=("ranking", "margin"))
    logit_margin: float = 10.0

    couples_samples = True
    refuses_soft_targets = True
    index_reason = "CRL ranks samples by their history"
    about = About("Correctness ranking loss", "Moon et al.", "ICML", 2020, kind="ACR")

    def __post_init__(self) -> None:
        if not isinstance(self.margin, bool):
            raise InputError(f"margin={self.margin!r} is not True or False: the distance of logits is logit_margin")
        super().__post_init__()

    def remembers_samples(self) -> bool:
        return self.condition == "ranking"

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        if self.condition == "margin":
            return {"ranking": labelled_mean(self._margin_values(at), at.valid)}
        correct = self.history.rank_value(at).to(at.logits.dtype)
        other, counts = next_in_batch(at)
        confidence = sample_means(self._confidence(at.logits), at)
        lead = correct - correct[other]
        margin = lead.abs() if self.margin else 0.0
        values = torch.where(lead != 0, margin - lead.sign() * (confidence - confidence[other]), 0.0).relu()
        return {"ranking": self.weight * labelled_mean(values, counts)}

    def rule(self, n_classes: int) -> Rule | None:
        return self.rule_on_cross_entropy(self._margin_rule()) if self.condition == "margin" else None

    def _confidence(self, z: Tensor) -> Tensor:
        if self.target == "softmax":
            return log_confidence(z)[0].exp()
        log_p = z.log_softmax(1)
        if self.target == "margin":
            first, second = log_p.exp().topk(2, dim=1).values.unbind(1)
            return first - second
        return (log_p.exp() * log_p).sum(1) / math.log(z.shape[1])

    def _margin_rule(self) -> Rule:
        above = f"> {self.logit_margin:g}"
        return Rule(
            down=Side(
                lambda at: self.weight * at.confidence * (1 - at.p),
                when=lambda at: (at.gap.amax(1, keepdim=True) > self.logit_margin).expand_as(at.z),
                formula="w p_ŷ (1 - p_ŷ)",
                condition=f"z_ŷ - min z {above}",
            ),
            up=Side(
                lambda at: self.weight * at.confidence * at.p,
                when=lambda at: at.gap > self.logit_margin,
                formula="w p_ŷ p_j",
                condition=f"z_ŷ - z_j {above}",
            ),
        )

    def _margin_values(self, at: Positions) -> Tensor:
        z = at.logits.detach()
        amount = self._margin_rule().smoothing(z, at.target)
        acts = View(z, at.target).gap.amax(1) > self.logit_margin
        value = torch.where(acts, self.weight * log_confidence(z)[0].exp(), 0.0)
        return value + (amount * (at.logits - z)).sum(1)
