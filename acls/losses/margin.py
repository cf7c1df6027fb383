"""Margin-based label smoothing (MbLS), and the kernel that it shares with ACLS.

The kernel computes cross-entropy plus the penalty, both value and gradient, in one pass.
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

# On a CPU the rows are processed in blocks of this many logits, so that intermediate results stay in the cache.
_BLOCK = 1 << 18
# Up to this many classes a block is transposed. Sums over classes are then vectorised over the samples.
_FEW_CLASSES = 128
_BIG = 1e37
_SCHEDULE = ("schedule", "mu", "max_weight", "step_size")


@dataclass(frozen=True)
class MarginTerm:
    """Parameters of a penalty: down max(0, z_ŷ - min z - M)^power + up sum_{j≠ŷ} max(0, z_ŷ - z_j - M)^power.

    ŷ is the predicted class (the first one if several tie), and M is the margin.
    """

    margin: float
    down: float
    """Weight of the term of the predicted class."""
    up: float
    """Weight of the term of each other class."""
    power: int
    absolute: bool = False
    """The first term uses z_ŷ itself instead of z_ŷ - min z."""
    stopped: bool = False
    """No gradient flows through min z, nor through z_ŷ in the terms of the other classes."""


class OnePass(Regularized):
    """A regulariser described by a `MarginTerm`. One pass computes it, cross-entropy, and the gradient of both."""

    def fused_term(self, n_classes: int) -> MarginTerm | None:
        """Return the penalty in the form that the kernel supports, or None if the settings are not supported."""
        raise NotImplementedError

    def _value(self, at: Positions) -> Tensor:
        plain = not at.soft and self.class_weight is None and type(self.base) is CE
        # The kernel is an autograd.Function, which torch.func does not support. It differentiates the terms instead.
        plain &= torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active()
        term = self.fused_term(at.n_classes) if plain else None
        if term is None:
            return super()._value(at)
        scale = None
        if at.valid is None and self.reduction != "none":
            scale = 1.0 / max(1, at.logits.shape[0]) if self.reduction == "mean" else 1.0
        value: Tensor = _Fused.apply(at.logits, at.target, term, scale)  # type: ignore[no-untyped-call]
        return reduced(value, at, self.reduction) if scale is None else value


def mbls_penalty(logits: Tensor, *, margin: float = 10.0, weight: float = 0.1) -> Tensor:
    """Return weight/K sum_k max(0, z_ŷ - z_k - margin) for logits ``(N, K, *D)``, one value per position ``(N, *D)``.

    >>> mbls_penalty(torch.tensor([[12.0, 6.0, 2.0, -1.0]]), margin=6.0)
    tensor([0.2750])
    """
    excess = (logits.max(1, keepdim=True).values - logits - margin).relu()
    excess = torch.where(excess < FAR, excess, 0.0)  # no penalty for a masked class
    return weight / logits.shape[1] * excess.sum(1)


class MbLS(OnePass):
    """Cross-entropy plus weight/K sum_k max(0, z_ŷ - z_k - margin): logit gaps up to the margin have no penalty.

    `mbls_penalty` computes the second term. The gradient also flows through the largest logit, so the predicted class
    is penalised, contrary to the ACLS paper's Table 2. The published margin is 6 on CIFAR-10 and 10 elsewhere.
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


class _Fused(torch.autograd.Function):
    """Cross-entropy plus a margin term, per row or as a sum times ``scale``. It saves only the gradient.

    Under a compiler it saves its inputs instead and runs the kernel again in the backward pass. The compiler removes
    the unused part of each run, shares the rest, and scales the gradient in the same loop that computes it.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor, term: MarginTerm, scale: float | None) -> Tensor:
        factor = 1.0 if scale is None else scale
        rows = max(1, _BLOCK // z.shape[1])
        # Blocks only help the cache of a CPU. An accelerator or a compiler processes all rows at once.
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
    """Return the gradient times one number, or one per row. A factor of 0 gives 0, even for NaN in an ignored row."""
    if by.ndim == 0:
        return gradient * by
    by = by.unsqueeze(1)
    return torch.where(by == 0, 0.0, gradient * by)


def value_and_gradient(z: Tensor, y: Tensor, term: MarginTerm, factor: float, axis: int = 1) -> tuple[Tensor, Tensor]:
    """Return cross-entropy plus the penalty per sample, and ``factor`` times its gradient, shaped as ``z``.

    The classes are on ``axis`` of ``z``. All paths use this kernel: eager mode, blocks on a CPU, and compilers.
    """
    power, own = term.power, term.down > 0
    looks = z.device.type == "cpu" and not torch.compiler.is_compiling()
    true = y.unsqueeze(axis)
    largest = z.amax(axis, keepdim=True)
    below = z - largest
    value = -below.gather(axis, true)
    # All intermediate results of the size of z share one buffer. Several buffers that are freed together would go back
    # to the system, and every step would wait for new pages. A compiler needs no buffer.
    scratch = None if torch.compiler.is_compiling() else torch.empty_like(below)
    predicted = _first_zero(below, axis, scratch)
    # The gap of a masked class is 0. On a CPU we skip this step if no class is masked.
    gaps, smallest = below, below.amin(axis, keepdim=True)
    if not looks or not bool((smallest > -FAR).all()):
        gaps = F.threshold(below, -FAR, 0.0)
        smallest = gaps.amin(axis, keepdim=True)
    # The term of the predicted class: `push` is its derivative, which is subtracted at the class `lowest`.
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
    over = torch.add(gaps, term.margin, out=scratch).clamp_(max=0.0)  # minus the excess of each gap over the margin
    # Cross-entropy.
    gradient = below.exp_()
    total = gradient.sum(axis, keepdim=True)
    value += total.log()
    gradient *= factor / total
    # The terms of the other classes.
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
    """Return the same as `value_and_gradient`, but process ``rows`` rows at a time."""
    values, gradient = z.new_empty(z.shape[0]), torch.empty_like(z)
    for start in range(0, z.shape[0], rows):
        block = slice(start, start + rows)
        if z.shape[1] <= _FEW_CLASSES:
            # torch copies a tensor with three axes with several threads, but a matrix with one.
            turned = z[block].t().unsqueeze(0).contiguous().squeeze(0)
            values[block], part = value_and_gradient(turned, y[block], term, factor, axis=0)
            gradient[block].unsqueeze(0).copy_(part.t().unsqueeze(0))
        else:
            values[block], gradient[block] = value_and_gradient(z[block], y[block], term, factor)
    return values, gradient


def _first_zero(x: Tensor, axis: int, out: Tensor | None) -> Tensor:
    """Return the first index along ``axis`` where ``x`` is 0. All other entries must be negative. Overwrites ``out``.

    The index is the one with the largest rank, counted from the end, among the zeros. This needs only sums and maxima,
    which are vectorised; an argmax is not.
    """
    last = x.shape[axis] - 1
    rank = torch.arange(last, -1, -1, dtype=x.dtype, device=x.device).unsqueeze(1 - axis)
    found = last - torch.add(rank, x, alpha=_BIG, out=out).amax(axis, keepdim=True)
    if torch.compiler.is_compiling():
        return found  # `_add_at` compares it in this form
    return found.long().clamp_(0, last)  # if the logits are not finite, any index is fine


def _add_at(x: Tensor, index: Tensor, amount: Tensor, axis: int) -> Tensor:
    """Return ``x`` with ``amount`` added at one class per sample. In eager mode the change is in place.

    A compiler can fuse a comparison with every class into its loop, but not an indexed write.
    """
    if not torch.compiler.is_compiling():
        return x.scatter_add_(axis, index, amount)
    classes = torch.arange(x.shape[axis], dtype=x.dtype, device=x.device).unsqueeze(1 - axis)
    return x + torch.where(classes == index.to(x.dtype), amount, 0.0)
