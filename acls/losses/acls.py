"""Adaptive and conditional label smoothing (ACLS), in all its published forms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acls.losses.base import About
from acls.losses.crl import RankedByHistory
from acls.losses.margin import MarginTerm, OnePass
from acls.losses.numerics import FAR, log_confidence
from acls.losses.rule import Rule, gradient_rule
from acls.options import option
from acls.shapes import Positions


@dataclass(frozen=True)
class Form:
    """The properties that distinguish one form of ACLS from the others."""

    absolute: bool = False
    """The term of the predicted class uses z_ŷ itself instead of z_ŷ - min z."""
    stopped: bool = False
    """No gradient flows through min z, nor through z_ŷ in the term of the other classes."""
    averaged: bool = True
    """The term of the other classes is a mean over K - 1 classes instead of a sum."""
    halved: bool = False
    """The squares are multiplied by 1/2, so that the gradient has no factor 2."""


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
    """Return the two terms of ACLS for logits ``(N, K, *D)``. Each term has one value per position, ``(N, *D)``.

    The form "paper" (Eq. 13) is lambda1 max(0, z_ŷ - min_k z_k - M)^2 and lambda2/(K-1) sum_{j≠ŷ}
    max(0, z_ŷ - z_j - M)^2, where ŷ is the predicted class and M is the margin. If several classes tie, ŷ is the first
    of them. `ACLS` explains the other forms and arguments.

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
        lead = lead * (z == largest).sum(1, keepdim=True)  # once per tied class, like the authors' code
    average = z.shape[1] - 1 if how.averaged else 1
    return lambda1 * lead.squeeze(1), lambda2 / average * gaps.sum(1)


class ACLS(RankedByHistory, OnePass):
    """Cross-entropy plus a penalty on logit gaps that exceed a margin: the wider the gap, the smoother the label.

    The penalty is lambda1 max(0, z_ŷ - margin)^2 + lambda2/(K-1) sum_{j≠ŷ} max(0, z_ŷ - z_j - margin)^2, where ŷ is the
    predicted class (the first one if several tie). The published margin is 6 on CIFAR-10 and 10 elsewhere.

    ``form="released"``, the default, is the authors' code, which produced the published numbers. No gradient flows
    through z_ŷ in the second term. In their notation, lambda1 = alpha pos_lambda and lambda2 = alpha neg_lambda.
    ``"paper"`` is the printed loss (Eq. 13): the first term uses z_ŷ - min_k z_k instead of z_ŷ, and the second term is
    averaged as in the authors' code. Its gradient sums to zero over the classes, so a constant added to all logits
    changes nothing. Each of these two forms had the lower NLL in two of four studies of accurate networks.
    ``"stopped"`` is ``"paper"`` without the gradient through min z and through z_ŷ in the second term.
    ``"printed-loss"`` is ``"paper"`` with a sum, not a mean, in the second term. ``"printed-gradient"`` has exactly
    the gradient of Eq. 12, which is not the gradient of any loss. In the forms with stopped gradients the logits can
    drift by a constant. With ``"stopped"``, accuracy has been observed to fall to chance level: see the errata.

    ``smoothing="constant"`` penalises the excess itself instead of its square (the paper's "CR only").
    ``condition="always"`` removes the condition, so that gaps are pulled towards the margin from both sides (the
    paper's "AR only"). ``condition="ranking"`` uses the condition of CRL: the penalty acts if a sample and the next one
    in the batch rank differently by confidence and by how often they were correct. Park et al., ICCV 2023.
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
        return self.rule_on_cross_entropy(gradient_rule(self.excess, *self._formulas()))

    def _formulas(self) -> tuple[str, str, tuple[str, str]]:
        """Return f as formulas in text, for the predicted class and for the other classes, and C of both."""
        how, clipped = FORMS[self.form], self.condition == "margin"
        lead = "z_ŷ" if how.absolute else "z_ŷ - min z"
        weight = "λ2/(K-1)" if how.averaged else "λ2"
        if self.smoothing == "adaptive":
            two = "" if how.halved else "2 "
            falls, rises = f"{two}λ1 ({lead} - M)", f"{two}{weight} (z_ŷ - z_j - M)"
            back = f"{two}{weight} " + ("Σ_j max(0, z_ŷ - z_j - M)" if clipped else "Σ_j≠ŷ (z_ŷ - z_j - M)")
        else:
            falls, rises, back = "λ1", weight, f"{weight} Σ_j C_j"
        if not how.stopped:
            falls, rises = f"{falls} + {back}", f"{rises}, and at min z the λ1 term"
        return falls, rises, (f"{lead} > M", "z_ŷ - z_j > M") if clipped else ("1", "1")

    def _ranked_wrongly(self, at: Positions) -> Tensor:
        """Return 1 per position if its sample and the next sample rank differently by history and by confidence."""
        lead, surer, _ = self.leads(at, log_confidence(at.logits.detach())[0].exp())
        n_positions = at.logits.shape[0] // max(1, at.shape[0])
        return (lead * surer < 0).to(at.logits.dtype).repeat_interleave(n_positions)
