"""Adaptive and conditional label smoothing, in every form it has been written down."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acls.errors import InputError
from acls.losses.base import About
from acls.losses.history import Ranked, next_in_batch, sample_means
from acls.losses.margin import MarginTerm, OnePass
from acls.losses.numerics import log_confidence
from acls.losses.smoothing import Rule, Side, View, always
from acls.modules import choose
from acls.shapes import Positions


@dataclass(frozen=True)
class _Form:
    from_zero: bool
    """The predicted class's logit is measured from 0, not from the smallest logit."""
    stopped: bool
    """No gradient goes through the smallest logit, nor through the largest in the other classes' term."""
    averaged: bool
    """The other classes' term is averaged over K - 1 classes, not added up."""
    halved: bool
    """Squares are halved, so that the gradient has no factor 2."""


FORMS = {
    "paper": _Form(from_zero=False, stopped=False, averaged=True, halved=False),
    "released": _Form(from_zero=True, stopped=True, averaged=True, halved=False),
    "stopped": _Form(from_zero=False, stopped=True, averaged=True, halved=False),
    "printed-loss": _Form(from_zero=False, stopped=False, averaged=False, halved=False),
    "printed-gradient": _Form(from_zero=False, stopped=True, averaged=False, halved=True),
}


class ACLS(Ranked, OnePass):
    """Cross-entropy plus squares of what logit gaps exceed a margin by: the wider the gap, the smoother the label.

    lambda1 max(0, z_ŷ - min_k z_k - margin)^2 + lambda2/(K-1) sum_{j≠ŷ} max(0, z_ŷ - z_j - margin)^2, ŷ the predicted
    class, the first where several tie. The published margin is 6 on CIFAR-10 and 10 elsewhere.

    ``form``: ``"paper"`` is the printed loss (Eq. 13) with the second term averaged as in the authors' code; its
    gradient sums to zero over classes, so a constant added to all logits changes nothing. ``"released"`` is the
    authors' code: z_ŷ itself instead of z_ŷ - min z, and no gradient through z_ŷ in the second term; there
    lambda1 = alpha pos_lambda and lambda2 = alpha neg_lambda. ``"stopped"`` is ``"paper"`` with no gradient through
    min z and through z_ŷ in the second term; ``"printed-loss"`` adds the second term up, and ``"printed-gradient"`` has
    exactly the gradient of Eq. 12, which is no loss's gradient. In the forms with stopped gradients the logits can
    drift by a constant, and ``"stopped"`` has been seen to fall to chance: see the errata.

    ``smoothing="constant"`` takes the excess itself, not its square (the paper's CR only); ``condition="always"``
    drops the condition, so that gaps are pulled towards the margin from both sides (AR only); ``"ranking"`` replaces it
    by CRL's: the sample and the next in the batch rank differently by confidence and by how often they were correct.
    Park et al., ICCV 2023.
    """

    lambda1: float = 0.1
    lambda2: float = 0.01
    margin: float = 10.0
    form: str = "paper"
    smoothing: str = "adaptive"
    condition: str = "margin"

    index_reason = "ACLS with condition='ranking' ranks samples by their history"
    about = About("Adaptive and conditional label smoothing", "Park et al.", "ICCV", 2023, kind="ACR")

    def __post_init__(self) -> None:
        choose("form", self.form, tuple(FORMS))
        choose("smoothing", self.smoothing, ("adaptive", "constant"))
        choose("condition", self.condition, ("margin", "ranking", "always"))
        if self.margin < 0 or self.lambda1 < 0 or self.lambda2 < 0:
            raise InputError(f"{self!r}: margin, lambda1 and lambda2 are not negative")
        super().__post_init__()

    def remembers_samples(self) -> bool:
        return self.condition == "ranking"

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        predicted, others = self._term(at.n_classes).parts(at.logits)
        if self.condition == "ranking":
            gate = self._ranked_wrongly(at)
            predicted, others = predicted * gate, others * gate
        return {"predicted": predicted, "others": others}

    def fused_term(self, n_classes: int) -> MarginTerm | None:
        return self._term(n_classes) if self.condition == "margin" else None

    def rule(self, n_classes: int) -> Rule | None:
        if self.condition == "ranking":
            return None
        term = self._term(n_classes)

        def slope(excess: Tensor, weight: float) -> Tensor:
            return 2 * weight * excess if term.power == 2 else torch.full_like(excess, weight)

        def lead(at: View) -> Tensor:
            return (at.z.amax(1, keepdim=True) if term.from_zero else at.gap.amax(1, keepdim=True)) - term.margin

        def exceeds(at: View) -> Tensor:
            return (lead(at) > 0).expand_as(at.z) if term.clipped else always(at)

        def others_exceed(at: View) -> Tensor:
            return at.gap > term.margin if term.clipped else always(at)

        def lowered(at: View) -> Tensor:
            amount = slope(lead(at), term.down)
            if term.from_zero:
                amount = amount * (at.gap == 0).sum(1, keepdim=True)
            if not term.stopped:
                by_others = torch.where(others_exceed(at), slope(at.gap - term.margin, term.up), 0.0)
                amount = amount + by_others.scatter(1, at.predicted, 0.0).sum(1, keepdim=True)
            return amount.expand_as(at.z)

        def raised(at: View) -> Tensor:
            amount = slope(at.gap - term.margin, term.up)
            if term.stopped:
                return amount
            return amount + torch.where(at.is_lowest, slope(lead(at), term.down), 0.0)

        floor = "" if term.from_zero else " - min z"
        falls, rises = _formulas(term, FORMS[self.form])
        return self.rule_on_cross_entropy(
            Rule(
                down=Side(
                    lowered,
                    when=exceeds,
                    formula=falls,
                    condition=f"z_ŷ{floor} > M" if term.clipped else "1",
                ),
                up=Side(
                    raised,
                    when=others_exceed,
                    formula=rises,
                    condition="z_ŷ - z_j > M" if term.clipped else "1",
                ),
            )
        )

    def _term(self, n_classes: int) -> MarginTerm:
        form = FORMS[self.form]
        adaptive = self.smoothing == "adaptive"
        half = 0.5 if form.halved and adaptive else 1.0
        return MarginTerm(
            margin=self.margin,
            down=half * self.lambda1,
            up=half * self.lambda2 / (n_classes - 1 if form.averaged else 1),
            power=2 if adaptive else 1,
            from_zero=form.from_zero,
            stopped=form.stopped,
            clipped=self.condition == "margin",
        )

    def _ranked_wrongly(self, at: Positions) -> Tensor:
        """Return 1 where a sample and the next rank differently by history and by confidence, a position each."""
        with torch.no_grad():
            correct = self.history.rank_value(at).to(at.logits.dtype)
            confidence = sample_means(log_confidence(at.logits)[0].exp(), at)
            other, _ = next_in_batch(at)
            wrongly = (correct - correct[other]) * (confidence - confidence[other]) < 0
        n_positions = at.logits.shape[0] // max(1, at.shape[0])
        return wrongly.to(at.logits.dtype).repeat_interleave(n_positions)


def _formulas(term: MarginTerm, form: _Form) -> tuple[str, str]:
    """Return f at the predicted class and at the others as one would write them."""
    two, weight = "" if form.halved else "2 ", "λ2/(K-1)" if form.averaged else "λ2"
    floor = "" if term.from_zero else " - min z"
    if term.power == 2:
        falls, rises = f"{two}λ1 (z_ŷ{floor} - M)", f"{two}{weight} (z_ŷ - z_j - M)"
        others = f"{two}{weight} " + ("Σ_j max(0, z_ŷ - z_j - M)" if term.clipped else "Σ_j≠ŷ (z_ŷ - z_j - M)")
    else:
        falls, rises, others = "λ1", weight, f"{weight} Σ_j C_j"
    return (falls, rises) if term.stopped else (f"{falls} + {others}", f"{rises}, and at min z the λ1 term")
