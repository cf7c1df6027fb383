"""The paper's view: a loss is label smoothing with a smoothing function f and an indicator C.

The gradient of a loss with respect to the logits is softmax(z) minus a label. A `Rule` writes that label down,
`effective_label` finds it for any loss by autograd, and `rule_loss` trains towards it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from acls.losses.numerics import FAR, first_equal
from acls.shapes import IGNORE_INDEX, check_logits, flatten, labelled_mean
from acls.shown import Shown


class View:
    """Logits ``(M, K)`` and classes ``(M,)`` with the quantities that rules use. Values per row are ``(M, 1)``."""

    def __init__(self, z: Tensor, y: Tensor) -> None:
        self.z = z
        self.y = y.unsqueeze(1)

    @cached_property
    def p(self) -> Tensor:
        """The softmax probabilities."""
        return self.z.log_softmax(1).exp()

    @cached_property
    def predicted(self) -> Tensor:
        """The class of the largest logit (the first one if several tie)."""
        return first_equal(self.z, self.z.amax(1, keepdim=True))

    @cached_property
    def confidence(self) -> Tensor:
        return self.p.gather(1, self.predicted)

    @cached_property
    def gap(self) -> Tensor:
        """The largest logit minus each logit; 0 for a masked class."""
        gap = self.z.amax(1, keepdim=True) - self.z
        return torch.where(gap < FAR, gap, 0.0)


Smoothing = Callable[[View], Tensor]


def never(view: View) -> Tensor:
    """Return 0 everywhere: the smoothing function of plain cross-entropy."""
    return torch.zeros_like(view.z)


def always(view: View) -> Tensor:
    """Return True everywhere: the indicator of methods without a condition."""
    return torch.ones_like(view.z, dtype=torch.bool)


@dataclass(frozen=True)
class Side:
    """The effect of a rule at the pivot class, or at the others: the amount ``f`` if the indicator ``when`` is true."""

    f: Smoothing = never
    when: Smoothing = always
    formula: str = "0"
    condition: str = "1"

    def amount(self, view: View) -> Tensor:
        """Return f C, ``(M, K)``."""
        return torch.where(self.when(view), self.f(view), torch.zeros_like(view.z))


@dataclass(frozen=True)
class Rule:
    """A row of the paper's Table 2: the one-hot label, lowered by f C at the pivot class and raised by f C elsewhere.

    The gradient of the method's loss at one position is ``softmax(z) - rule.label(z, y)``.
    """

    pivot: Literal["predicted", "true"] = "predicted"
    down: Side = Side()
    up: Side = Side()

    def label(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the label ``(M, K)`` that the method trains towards at logits ``(M, K)`` and classes ``(M,)``."""
        return F.one_hot(y, z.shape[1]).to(z.dtype) - self.smoothing(z, y)

    def pivot_of(self, view: View) -> Tensor:
        """Return the pivot class of each row, ``(M, 1)``."""
        return view.predicted if self.pivot == "predicted" else view.y

    def pull(self, z: Tensor, y: Tensor) -> Tensor:
        """Return 0 per row, ``(M,)``, with gradient f C: the detached f C times (logits - detached logits)."""
        fixed = z.detach()
        return (self.smoothing(fixed, y) * (z - fixed)).sum(1)

    def smoothing(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the amount by which the label is lowered, ``(M, K)``: f C at the pivot class, minus f C elsewhere."""
        view = View(z, y)
        at_pivot = torch.zeros_like(z, dtype=torch.bool).scatter(1, self.pivot_of(view), True)
        return torch.where(at_pivot, self.down.amount(view), -self.up.amount(view))

    def acts(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether the label changes at the pivot class, and at any other class; each ``(M,)`` bool.

        Their means are the fractions of samples on which a regulariser acts.

        >>> from acls.losses import ACLS
        >>> logits = torch.tensor([[5.0, 0.0, -4.0], [7.0, 2.0, -1.0], [3.0, 1.0, 0.0]])
        >>> ACLS(margin=6.0, form="released").rule(3).acts(logits, torch.tensor([0, 1, 2]))
        (tensor([False,  True, False]), tensor([ True,  True, False]))
        """
        changed, pivot = self.smoothing(z, y) != 0, self.pivot_of(View(z, y))
        return changed.gather(1, pivot).squeeze(1), changed.scatter(1, pivot, False).any(1)


def gradient_rule(
    excess: Callable[[Tensor, Tensor], Tensor],
    down: str,
    up: str,
    conditions: tuple[str, str] | None = None,
    pivot: Literal["predicted", "true"] = "predicted",
) -> Rule:
    """Return the rule of cross-entropy plus ``excess(z, y)``, one value per row of logits. f is its gradient.

    ``down``, ``up`` and their ``conditions`` are the formulas of f and C as text. With conditions, C is true where f is
    not 0. Without them, C is true everywhere.
    """

    def gradient(view: View) -> Tensor:
        z = view.z.detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(excess(z, view.y.squeeze(1)).sum(), z)
        return found

    when = always if conditions is None else lambda view: gradient(view) != 0
    if_down, if_up = conditions or ("1", "1")
    return Rule(pivot, Side(gradient, when, down, if_down), Side(lambda view: -gradient(view), when, up, if_up))


def effective_label(
    loss: Callable[..., Tensor],
    logits: Tensor,
    target: Tensor,
    *,
    index: Tensor | None = None,
    reduction: str | None = None,
) -> Tensor:
    """Return the label that ``loss`` effectively trains towards: softmax(z) - dL/dz, in the shape of the logits.

    ``loss`` is any callable of logits and target, including your own. ``reduction`` states whether it returns the mean
    over positions ("mean") or their sum ("sum"). The default is the attribute ``reduction`` of the loss, or "mean" if
    it has none. The mean does not count positions whose label is the ``ignore_index`` of the loss. ``index`` is passed
    to the loss, for losses that keep a memory of the samples.

    >>> effective_label(torch.nn.CrossEntropyLoss(label_smoothing=0.1), torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    tensor([[0.9500, 0.0500]])
    """
    reduction = reduction or getattr(loss, "reduction", "mean")
    check_logits(logits)
    z = logits.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = loss(z, target) if index is None else loss(z, target, index)
    (gradient,) = torch.autograd.grad(value.sum(), z, materialize_grads=True)
    if reduction == "mean":
        at = flatten(z.detach(), target, ignore_index=getattr(loss, "ignore_index", IGNORE_INDEX))
        gradient = gradient * at.count()
    return logits.detach().softmax(1) - gradient


def rule_loss(rule: Rule, logits: Tensor, target: Tensor, *, ignore_index: int = IGNORE_INDEX) -> Tensor:
    """Return a scalar with the gradient of the rule: the mean cross-entropy plus the detached f C times the logits.

    The value of the second part is 0, because a rule is not always the gradient of a loss (the paper's Eq. 12 is not).
    """
    at = flatten(logits, target, ignore_index=ignore_index)
    values = F.cross_entropy(at.logits, at.target, reduction="none") + rule.pull(at.logits, at.target)
    return labelled_mean(values, at.valid)


@dataclass(frozen=True)
class RuleRow:
    """A method's row of the corrected Table 2: the label is lowered at the pivot and raised elsewhere."""

    method: str
    kind: str
    pivot: str
    f_pivot: str
    c_pivot: str
    f_others: str
    c_others: str


def table(losses: Iterable[Any], n_classes: int = 10) -> list[RuleRow]:
    """Return the rows of Table 2 for the losses that have a `Rule`."""
    rows = []
    for loss in losses:
        rule = loss.rule(n_classes)
        if rule is not None:
            pivot = "ŷ" if rule.pivot == "predicted" else "y"
            sides = (rule.down.formula, rule.down.condition, rule.up.formula, rule.up.condition)
            rows.append(RuleRow(repr(loss), loss.about.kind, pivot, *sides))
    return rows


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """The effect of several methods on one prediction: the output of `explain` by the text of each method."""

    logits: Sequence[float]
    label: int
    methods: Mapping[str, dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return the output of `acls explain --json`."""
        return dict(self.methods)


def explain_all(losses: Iterable[Any], logits: Sequence[float], label: int) -> Explanation:
    """Return the effect of each loss on one prediction, like `acls explain`."""
    return Explanation(logits, label, {repr(loss): explain(loss, logits, label) for loss in losses})


_FORMULA = ("pivot", "f at the pivot", "C at the pivot", "f elsewhere", "C elsewhere")


def explain(loss: Any, logits: Sequence[float], label: int) -> dict[str, Any]:
    """Return the effect of a method on one prediction: its effective label, and f and C if it has a `Rule`.

    Methods that use the whole batch get a batch with only this sample.
    """
    z, y = torch.tensor([list(logits)], dtype=torch.float64), torch.tensor([label])
    loss.prepare(n_train=1, n_classes=len(logits))
    index = torch.tensor([0]) if loss.needs_index else None
    # Rounding to the accuracy of a float64 softmax also turns -0.0000 into 0.0000.
    aims_at = effective_label(loss.double(), z, y, index=index)[0].round(decimals=12) + 0.0
    total = float(aims_at.sum())
    found = {"type": loss.about.kind, "label": aims_at.tolist(), "sum": total, "sums_to_one": abs(total - 1) < 1e-9}
    rule = loss.rule(len(logits))
    if rule is None:
        return found
    view = View(z, y)
    pivot = int(rule.pivot_of(view))
    sides = [rule.down if k == pivot else rule.up for k in range(len(logits))]
    (row,) = table([loss], len(logits))
    return found | {
        "pivot": pivot,
        "f": [float(side.f(view).expand_as(z)[0, k].round(decimals=12) + 0.0) for k, side in enumerate(sides)],
        "C": [int(side.when(view).expand_as(z)[0, k]) for k, side in enumerate(sides)],
        "formula": dict(zip(_FORMULA, astuple(row)[2:], strict=True)),
    }
