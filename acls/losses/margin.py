"""Margin-based label smoothing, and its kernel, which ACLS shares: one pass for cross-entropy plus the penalty.

The kernel computes the value, and the gradient with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from acls.errors import InputError
from acls.losses.base import CE, About, Regularized, reduced
from acls.losses.numerics import FAR
from acls.losses.rule import Rule, gradient_rule
from acls.options import option
from acls.shapes import Positions

# On a CPU rows are taken in blocks of this many logits, so that what is computed from them stays in the cache.
_BLOCK = 1 << 18
# Up to this many classes a block is transposed: sums over classes then run along the samples, which is vectorised.
_FEW_CLASSES = 128
_BIG = 1e37
_SCHEDULE = ("schedule", "mu", "max_weight", "step_size")


@dataclass(frozen=True)
class MarginTerm:
    """The numbers of a penalty: down max(0, z_ŷ - min z - M)^power + up sum_{j≠ŷ} max(0, z_ŷ - z_j - M)^power.

    ŷ is the predicted class, the first where several tie, and M the margin.
    """

    margin: float
    down: float
    """Weight of the predicted class's term."""
    up: float
    """Weight of each other class's term."""
    power: int
    absolute: bool = False
    """The first term has z_ŷ itself, not z_ŷ - min z."""
    stopped: bool = False
    """No gradient flows through min z, nor through z_ŷ in the other classes' terms."""


class OnePass(Regularized):
    """A regulariser that a `MarginTerm` describes, computed together with cross-entropy and the gradient of both."""

    def fused_term(self, n_classes: int) -> MarginTerm | None:
        """Return the penalty as the kernel takes it; None where the settings need more than that."""
        raise NotImplementedError

    def _value(self, at: Positions) -> Tensor:
        plain = not at.soft and self.class_weight is None and type(self.base) is CE
        # torch.func differentiates the terms themselves: the kernel is an autograd.Function, which it does not take.
        plain &= torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active()
        term = self.fused_term(at.n_classes) if plain else None
        if term is None:
            return super()._value(at)
        scale = None
        if at.valid is None and self.reduction != "none":
            scale = 1.0 / max(1, at.logits.shape[0]) if self.reduction == "mean" else 1.0
        value: Tensor = _OnePass.apply(at.logits, at.target, term, scale)  # type: ignore[no-untyped-call]
        return reduced(value, at, self.reduction) if scale is None else value


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
            raise InputError(f"MbLS(schedule={fields['schedule']!r}): weight schedules were removed after 0.1.0")
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


class _OnePass(torch.autograd.Function):
    """Cross-entropy plus a margin term per row, or their sum times ``scale``; keeps the gradient and nothing else.

    Traced by a compiler it keeps its inputs and runs the kernel again on the way back: the compiler drops from each run
    what is not used, shares the rest, and scales the gradient in the loop that makes it.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor, term: MarginTerm, scale: float | None) -> Tensor:
        factor = 1.0 if scale is None else scale
        rows = max(1, _BLOCK // z.shape[1])
        # Blocks serve a processor's cache. An accelerator, or a compiler, takes all rows at once.
        if torch.compiler.is_compiling() or z.device.type != "cpu" or z.shape[0] <= rows:
            values, gradient = value_and_gradient(z, y, term, factor)
        else:
            values, gradient = _in_blocks(z, y, term, factor, rows)
        if torch.compiler.is_compiling():
            ctx.save_for_backward(z, y)
            ctx.term, ctx.factor = term, factor
        else:
            ctx.save_for_backward(gradient)
        return values if scale is None else values.sum() * scale

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.compiler.is_compiling():
            z, y = ctx.saved_tensors
            _, gradient = value_and_gradient(z, y, ctx.term, ctx.factor)
            return _scaled(gradient, grad_output), None, None, None
        if torch.is_grad_enabled():
            raise RuntimeError(
                "this loss keeps only its gradient and cannot be differentiated twice: "
                "for second derivatives use sum(loss.terms(logits, target).values())"
            )
        (gradient,) = ctx.saved_tensors
        if grad_output.ndim or not grad_output.is_cpu or grad_output.item() != 1.0:
            gradient = _scaled(gradient, grad_output)
        return gradient, None, None, None


def _scaled(gradient: Tensor, by: Tensor) -> Tensor:
    """Return the gradient times one number, or one per row: 0 where that is 0, whatever stands in an ignored row."""
    if by.ndim == 0:
        return gradient * by
    by = by.unsqueeze(1)
    return torch.where(by == 0, 0.0, gradient * by)


def value_and_gradient(z: Tensor, y: Tensor, term: MarginTerm, factor: float, axis: int = 1) -> tuple[Tensor, Tensor]:
    """Return cross-entropy plus the penalty per sample, and ``factor`` times its gradient, shaped as ``z``.

    The classes are on ``axis`` of ``z``. The one kernel: run eagerly, in blocks on a CPU, and traced by a compiler.
    """
    power, own = term.power, term.down > 0
    looks = z.device.type == "cpu" and not torch.compiler.is_compiling()
    true = y.unsqueeze(axis)
    largest = z.amax(axis, keepdim=True)
    below = z - largest
    value = -below.gather(axis, true)
    # What else is as large as z takes turns in one buffer: several, freed together, would go back to the system, and
    # every step would wait for new pages. A compiler needs none.
    scratch = None if torch.compiler.is_compiling() else torch.empty_like(below)
    predicted = _first_zero(below, axis, scratch)
    # A masked class has no gap. On a CPU a look at the data spares the work where nothing is masked.
    gaps, smallest = below, below.amin(axis, keepdim=True)
    if not looks or not bool((smallest > -FAR).all()):
        gaps = F.threshold(below, -FAR, 0.0)
        smallest = gaps.amin(axis, keepdim=True)
    # The predicted class's own term: `push` is its derivative, taken from the class `lowest`.
    push = torch.zeros_like(value)
    if own:
        weight = torch.full_like(value, term.down)
        if term.absolute:
            lead = (largest - term.margin).clamp_(0.0, FAR)
            weight *= z.shape[axis] + torch.sign(below, out=scratch).sum(axis, keepdim=True)  # once per tied class
        else:
            lead = (-smallest - term.margin).clamp_(min=0.0)
            lowest = _first_zero(torch.sub(smallest, gaps, out=scratch), axis, scratch)
        value += weight * lead**power
        push = weight * (power * factor) * (lead if power == 2 else lead.sign())
    pull = push
    over = torch.add(gaps, term.margin, out=scratch).clamp_(max=0.0)  # minus what each gap exceeds the margin by
    # Cross-entropy.
    gradient = below.exp_()
    total = gradient.sum(axis, keepdim=True)
    value += total.log()
    gradient *= factor / total
    # The other classes' terms.
    if power == 1:
        value -= term.up * over.sum(axis, keepdim=True)
        over.sign_()
    slope = power * factor * term.up
    gradient.add_(over, alpha=slope)
    if not term.stopped:
        pull = pull - slope * over.sum(axis, keepdim=True)
        if own and not term.absolute:
            gradient = _add_at(gradient, lowest, -push, axis)
    if power == 2:
        value += term.up * over.square_().sum(axis, keepdim=True)
    gradient = _add_at(gradient, predicted, pull, axis)
    gradient = _add_at(gradient, true, torch.full_like(value, -factor), axis)
    return value.squeeze(axis), gradient


def _in_blocks(z: Tensor, y: Tensor, term: MarginTerm, factor: float, rows: int) -> tuple[Tensor, Tensor]:
    """Do as `value_and_gradient`, ``rows`` rows at a time."""
    values, gradient = z.new_empty(z.shape[0]), torch.empty_like(z)
    for start in range(0, z.shape[0], rows):
        block = slice(start, start + rows)
        if z.shape[1] <= _FEW_CLASSES:
            # With a third axis the copy is shared among threads, which it is not for a matrix.
            turned = z[block].t().unsqueeze(0).contiguous().squeeze(0)
            values[block], part = value_and_gradient(turned, y[block], term, factor, axis=0)
            gradient[block].unsqueeze(0).copy_(part.t().unsqueeze(0))
        else:
            values[block], gradient[block] = value_and_gradient(z[block], y[block], term, factor)
    return values, gradient


def _first_zero(x: Tensor, axis: int, out: Tensor | None) -> Tensor:
    """Return the first index along ``axis`` where ``x`` is 0, which elsewhere is below 0; ``out`` is overwritten.

    Found as the largest rank from the end that nothing is taken from: sums and maxima are vectorised, an argmax is not.
    """
    last = x.shape[axis] - 1
    rank = torch.arange(last, -1, -1, dtype=x.dtype, device=x.device).unsqueeze(1 - axis)
    found = last - torch.add(rank, x, alpha=_BIG, out=out).amax(axis, keepdim=True)
    if torch.compiler.is_compiling():
        return found  # as `_add_at` compares it
    return found.long().clamp_(0, last)  # any index will do where logits are not finite


def _add_at(x: Tensor, index: Tensor, amount: Tensor, axis: int) -> Tensor:
    """Return ``x`` with ``amount`` added at one class per sample; eagerly in place.

    A compiler melts a comparison of every class into the loop that it has anyway, but not an indexed write.
    """
    if not torch.compiler.is_compiling():
        return x.scatter_add_(axis, index, amount)
    classes = torch.arange(x.shape[axis], dtype=x.dtype, device=x.device).unsqueeze(1 - axis)
    return x + torch.where(classes == index.to(x.dtype), amount, 0.0)
