"""Adaptive and conditional label smoothing, in every form it has been written down."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acls.losses.base import About
from acls.losses.crl import RankedByHistory, next_in_batch, sample_means
from acls.losses.margin import MarginTerm, OnePass
from acls.losses.numerics import FAR, log_confidence
from acls.losses.rule import Rule, gradient_rule
from acls.options import option
from acls.shapes import Positions


@dataclass(frozen=True)
class Form:
    """What sets one way of writing ACLS down apart from the others."""

    absolute: bool = False
    """The predicted class's term has z_ŷ itself, not z_ŷ - min z."""
    stopped: bool = False
    """No gradient flows through min z, nor through z_ŷ in the other classes' term."""
    averaged: bool = True
    """The other classes' term is averaged over K - 1 classes, not added up."""
    halved: bool = False
    """Squares are halved, so that the gradient has no factor 2."""


FORMS = {
    "paper": Form(),
    "released": Form(absolute=True, stopped=True),
    "stopped": Form(stopped=True),
    "printed-loss": Form(averaged=False),
    "printed-gradient": Form(stopped=True, averaged=False, halved=True),
}


def acls_penalty(
    logits: Tensor,
    *,
    margin: float = 10.0,
    lambda1: float = 0.1,
    lambda2: float = 0.01,
    form: str = "released",
    smoothing: str = "adaptive",
    condition: str = "margin",
) -> tuple[Tensor, Tensor]:
    """Return the two terms of ACLS of logits ``(N, K, *D)``, one value per position ``(N, *D)`` each.

    In the form "paper" (Eq. 13): lambda1 max(0, z_ŷ - min_k z_k - M)^2 and lambda2/(K-1) sum_{j≠ŷ}
    max(0, z_ŷ - z_j - M)^2, with ŷ the predicted class, the first where several tie, and M the margin. The other forms
    and arguments are explained in `ACLS`.

    >>> acls_penalty(torch.tensor([[12.0, 6.0, 2.0, -1.0]]), margin=6.0, form="paper")
    (tensor([4.9000]), tensor([0.2167]))
    """
    how, z = FORMS[form], logits
    largest, predicted = z.max(1, keepdim=True)
    is_other = (largest - z < FAR).scatter(1, predicted, False)  # a masked class is left out
    gaps = torch.where(is_other, largest - z, 0.0)
    smallest = torch.zeros_like(largest) if how.absolute else largest - gaps.max(1, keepdim=True).values
    if how.stopped:
        smallest, gaps = smallest.detach(), torch.where(is_other, largest.detach() - z, 0.0)
    lead, gaps = largest - smallest - margin, torch.where(is_other, gaps - margin, 0.0)
    if condition == "margin":
        lead, gaps = lead.relu().clamp(max=FAR), gaps.relu()
    if smoothing == "adaptive":
        half = 0.5 if how.halved else 1.0
        lead, gaps = half * lead.square(), half * gaps.square()
    if how.absolute:
        lead = lead * (z == largest).sum(1, keepdim=True)  # as the authors' code: once per tied class
    average = z.shape[1] - 1 if how.averaged else 1
    return lambda1 * lead.squeeze(1), lambda2 / average * gaps.sum(1)


class ACLS(RankedByHistory, OnePass):
    """Cross-entropy plus squares of what logit gaps exceed a margin by: the wider the gap, the smoother the label.

    lambda1 max(0, z_ŷ - margin)^2 + lambda2/(K-1) sum_{j≠ŷ} max(0, z_ŷ - z_j - margin)^2, ŷ the predicted class, the
    first where several tie. The published margin is 6 on CIFAR-10 and 10 elsewhere.

    ``form``: ``"released"``, the default, is the authors' code, which published numbers come from: no gradient flows
    through z_ŷ in the second term; there lambda1 = alpha pos_lambda and lambda2 = alpha neg_lambda. ``"paper"`` is the
    printed loss (Eq. 13), z_ŷ - min_k z_k instead of z_ŷ in the first term, with the second averaged as in the authors'
    code; its gradient sums to zero over classes, so a constant added to all logits changes nothing. Of the two, each
    had the lower NLL in two of four studies of accurate networks. ``"stopped"`` is ``"paper"`` with no gradient through
    min z and through z_ŷ in the second term; ``"printed-loss"`` adds the second term up, and ``"printed-gradient"`` has
    exactly the gradient of Eq. 12, which is no loss's gradient. In the forms with stopped gradients the logits can
    drift by a constant, and ``"stopped"`` has been seen to fall to chance: see the errata.

    ``smoothing="constant"`` takes the excess itself, not its square (the paper's CR only); ``condition="always"``
    drops the condition, so that gaps are pulled towards the margin from both sides (AR only); ``"ranking"`` replaces it
    by CRL's: the sample and the next in the batch rank differently by confidence and by how often they were correct.
    Park et al., ICCV 2023.
    """

    lambda1: float = option(default=0.1, within="[0, inf)")
    lambda2: float = option(default=0.01, within="[0, inf)")
    margin: float = option(default=10.0, within="[0, inf)")
    form: str = option(default="released", choices=tuple(FORMS))
    smoothing: str = option(default="adaptive", choices=("adaptive", "constant"))
    condition: str = option(default="margin", choices=("margin", "ranking", "always"))

    index_reason = "ACLS with condition='ranking' ranks samples by their history"
    about = About("Adaptive and conditional label smoothing", "Park et al.", "ICCV", 2023, kind="ACR")

    def remembers_samples(self) -> bool:
        return self.condition == "ranking"

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        names = ("margin", "lambda1", "lambda2", "form", "smoothing", "condition")
        predicted, others = acls_penalty(at.logits, **{name: getattr(self, name) for name in names})
        if self.condition == "ranking":
            gate = self._ranked_wrongly(at)
            predicted, others = predicted * gate, others * gate
        return {"predicted": predicted, "others": others}

    def fused_term(self, n_classes: int) -> MarginTerm | None:
        if self.condition != "margin":
            return None
        how, adaptive = FORMS[self.form], self.smoothing == "adaptive"
        half = 0.5 if how.halved and adaptive else 1.0
        up = half * self.lambda2 / (n_classes - 1 if how.averaged else 1)
        power = 2 if adaptive else 1
        return MarginTerm(self.margin, half * self.lambda1, up, power, absolute=how.absolute, stopped=how.stopped)

    def rule(self, n_classes: int) -> Rule | None:
        if self.condition == "ranking":
            return None
        (down, if_down), (up, if_up) = self._formulas()
        return self.rule_on_cross_entropy(gradient_rule(self.excess, down, up, (if_down, if_up)))

    def _formulas(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return f and C at the predicted class, and at the others, as one would write them."""
        how, clipped = FORMS[self.form], self.condition == "margin"
        lead = "z_ŷ" if how.absolute else "z_ŷ - min z"
        weight = "λ2/(K-1)" if how.averaged else "λ2"
        if self.smoothing == "adaptive":
            two = "" if how.halved else "2 "
            falls, rises = f"{two}λ1 ({lead} - M)", f"{two}{weight} (z_ŷ - z_j - M)"
            back = f"{two}{weight} " + ("Σ_j max(0, z_ŷ - z_j - M)" if clipped else "Σ_j≠ŷ (z_ŷ - z_j - M)")
        else:
            falls, rises, back = "λ1", weight, f"{weight} Σ_j C_j"
        if_falls, if_rises = (f"{lead} > M", "z_ŷ - z_j > M") if clipped else ("1", "1")
        if how.stopped:
            return (falls, if_falls), (rises, if_rises)
        return (f"{falls} + {back}", if_falls), (f"{rises}, and at min z the λ1 term", if_rises)

    def _ranked_wrongly(self, at: Positions) -> Tensor:
        """Return 1 where a sample and the next rank differently by history and by confidence, per position."""
        with torch.no_grad():
            correct = self.rank_value(at).to(at.logits.dtype)
            confidence = sample_means(log_confidence(at.logits)[0].exp(), at)
            other, _ = next_in_batch(at)
            wrongly = (correct - correct[other]) * (confidence - confidence[other]) < 0
        n_positions = at.logits.shape[0] // max(1, at.shape[0])
        return wrongly.to(at.logits.dtype).repeat_interleave(n_positions)
