"""The margin terms of MbLS and ACLS, and the pass that computes such a loss and its gradient at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from acls.losses.numerics import first_equal, top

# Logits looked at in one go, so that what is made of them stays in the processor's cache.
_LOGITS_AT_ONCE = 1 << 18
# Up to here blocks are turned so that sums over classes run along the samples, which the processor does many at a time.
_FEW_CLASSES = 128
_VECTORISED_FROM = 1 << 14


@dataclass(frozen=True)
class MarginTerm:
    """down max(0, z_ŷ - min z - margin)^power + up sum_{j≠ŷ} max(0, z_ŷ - z_j - margin)^power, with its variants.

    ŷ is the predicted class, the first where several tie; power 2 smooths adaptively, power 1 by a constant.
    """

    margin: float
    down: float
    """The weight of the predicted class's term."""
    up: float
    """The weight of each other class's term."""
    power: int
    from_zero: bool = False
    """Measure the predicted class's logit from 0, not from the smallest logit; classes that tie count it once each."""
    stopped: bool = False
    """Let no gradient through the smallest logit, nor through the largest in the other classes' term."""
    clipped: bool = True
    """Leave out what is within the margin; else the terms pull towards the margin from both sides."""

    def parts(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted class's and the other classes' term, one value a position each."""
        largest, predicted = top(z)
        low = 0.0 if self.from_zero else z.gather(1, first_equal(z, z.detach().amin(1, keepdim=True)))
        if self.stopped and isinstance(low, Tensor):
            low = low.detach()
        excess = largest - low - self.margin
        excesses = (largest.detach() if self.stopped else largest) - z - self.margin
        if self.clipped:
            excess, excesses = excess.relu(), excesses.relu()
        else:
            excesses = excesses.scatter(1, predicted, 0.0)
        if self.power == 2:
            excess, excesses = excess.square(), excesses.square()
        if self.from_zero:
            excess = excess * (z == largest).sum(1, keepdim=True)
        return self.down * excess.squeeze(1), self.up * excesses.sum(1)

    def with_cross_entropy(self, z: Tensor, y: Tensor, scale: float | None) -> Tensor | None:
        """Return cross-entropy plus this term, one value a position, from one pass that keeps only the gradient.

        With ``scale``, return their sum times it. None for terms that are not clipped.
        """
        if not self.clipped:
            return None
        values: Tensor = _OnePass.apply(z, y, self, scale)  # type: ignore[no-untyped-call]
        return values


class _OnePass(torch.autograd.Function):
    """Cross-entropy plus a `MarginTerm`, ``(M,)``, or its scaled sum; the gradient is made on the way and kept."""

    @staticmethod
    def forward(ctx: FunctionCtx, z: Tensor, y: Tensor, term: MarginTerm, scale: float | None) -> Tensor:
        n, k = z.shape
        factor = 1.0 if scale is None else scale
        step = max(1, _LOGITS_AT_ONCE // k)
        if torch.compiler.is_compiling():
            values, gradient = _compiled_value_and_gradient(z, y, term, factor)
        elif n <= step:
            values, gradient = _value_and_gradient(z, y, term, factor, axis=1)
        else:
            values, gradient = z.new_empty(n), torch.empty_like(z)
            for start in range(0, n, step):
                rows = slice(start, start + step)
                if k <= _FEW_CLASSES:
                    # With a third axis the turning is shared among threads, which it is not for a matrix.
                    turned = z[rows].t().unsqueeze(0).contiguous().squeeze(0)
                    values[rows], part = _value_and_gradient(turned, y[rows], term, factor, axis=0)
                    gradient[rows].unsqueeze(0).copy_(part.t().unsqueeze(0))
                else:
                    values[rows], gradient[rows] = _value_and_gradient(z[rows], y[rows], term, factor, axis=1)
        ctx.save_for_backward(gradient)
        return values if scale is None else values.sum() * scale

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "this loss keeps only its gradient and cannot be differentiated twice: "
                "for second derivatives use sum(loss.terms(logits, target).values())"
            )
        (gradient,) = ctx.saved_tensors
        if grad_output.ndim:
            gradient = gradient * grad_output.unsqueeze(1)
        elif grad_output.device.type != "cpu" or torch.compiler.is_compiling() or grad_output.item() != 1.0:
            gradient = gradient * grad_output
        return gradient, None, None, None


def _value_and_gradient(z: Tensor, y: Tensor, term: MarginTerm, factor: float, axis: int) -> tuple[Tensor, Tensor]:
    """Return the loss ``(M,)`` and ``factor`` times its gradient, shaped as ``z``, whose classes are on ``axis``."""
    true = y.unsqueeze(axis)
    # torch's own argmax is not vectorised and costs ten times the largest value itself: for few logits only.
    few = z.numel() < _VECTORISED_FROM
    if few:
        largest, predicted = z.max(axis, keepdim=True)
        below = z - largest
    else:
        largest = z.amax(axis, keepdim=True)
        below = z - largest
        predicted = _first_zero(below, axis)
    over = F.softshrink(below, term.margin)  # minus what each class's gap exceeds the margin by
    of_true = below.gather(axis, true)
    p = below.exp_()
    total = p.sum(axis, keepdim=True)
    value = total.log().sub_(of_true)
    gradient = p.div_(total if factor == 1.0 else total.div_(factor))
    # The other classes' term; `pull` gathers what is to be added to the gradient of the predicted class.
    up, down = factor * term.up, factor * term.down
    if term.power == 2:
        value.add_(_sum_of_squares(over, axis), alpha=term.up)
        gradient.add_(over, alpha=2 * up)
        pull = over.sum(axis, keepdim=True).mul_(-2 * up)
    else:
        acts = over.sign()
        value.sub_(over.sum(axis, keepdim=True), alpha=term.up)
        gradient.add_(acts, alpha=up)
        pull = acts.sum(axis, keepdim=True).mul_(-up)
    if term.stopped:
        pull.zero_()
    # The predicted class's own term.
    if term.down:
        if term.from_zero:
            lead = (largest - term.margin).relu_().neg_()
        elif few:
            lead, lowest = over.min(axis, keepdim=True)
        else:
            lead = over.amin(axis, keepdim=True)
            lowest = _first_zero(lead - over, axis)
        push = lead * (2 * down) if term.power == 2 else lead.sign().mul_(down)  # 0 or less
        if term.from_zero:
            push *= (z == largest).sum(axis, keepdim=True)
        value.addcmul_(push, lead, value=1 / (factor * term.power))
        pull -= push
        if not (term.stopped or term.from_zero):
            # Where nothing exceeds the margin the first class is found, and moved by 0.
            gradient.scatter_add_(axis, lowest, push)
    gradient.scatter_add_(axis, predicted, pull)
    gradient.scatter_add_(axis, true, torch.full_like(value, -factor))
    return value.squeeze(axis), gradient


def _compiled_value_and_gradient(z: Tensor, y: Tensor, term: MarginTerm, factor: float) -> tuple[Tensor, Tensor]:
    """Do the same by elementwise operations and sums alone, which a compiler melts into two loops over the logits.

    Classes that tie share what is added to the gradient of the predicted class.
    """
    largest = z.amax(1, keepdim=True)
    below = z - largest
    p = below.exp()
    total = p.sum(1, keepdim=True)
    is_true = torch.arange(z.shape[1], device=z.device) == y.unsqueeze(1)
    over = (-below - term.margin).relu()
    slope = 2 * over if term.power == 2 else (over > 0).to(z.dtype)
    value = total.log() - torch.where(is_true, below, 0.0).sum(1, keepdim=True)
    value = value + term.up * (over**term.power).sum(1, keepdim=True)
    gradient = p / total - is_true.to(z.dtype) - term.up * slope
    is_top = (below == 0).to(z.dtype)
    n_top = is_top.sum(1, keepdim=True)
    pull = 0.0 if term.stopped else term.up * slope.sum(1, keepdim=True)
    if term.down:
        lead = (largest - term.margin).relu() if term.from_zero else over.amax(1, keepdim=True)
        weight = term.down * (n_top if term.from_zero else 1.0)
        value = value + weight * lead**term.power
        push = weight * (2 * lead if term.power == 2 else (lead > 0).to(z.dtype))
        pull = pull + push
        if not (term.stopped or term.from_zero):
            is_low = (over == lead).to(z.dtype)
            gradient = gradient - is_low * (push / is_low.sum(1, keepdim=True))
    gradient = gradient + is_top * (pull / n_top)
    return value.squeeze(1), gradient * factor


def _first_zero(x: Tensor, axis: int) -> Tensor:
    """Return the first index along ``axis`` where ``x``, which is 0 or less, is 0.

    Found as the largest rank from the end that nothing is taken from: sums and maxima are vectorised.
    """
    k = x.shape[axis]
    rank = torch.arange(k - 1, -1, -1, dtype=x.dtype, device=x.device).unsqueeze(1 - axis)
    found = (x * (torch.finfo(x.dtype).max / 4)).add_(rank).amax(axis, keepdim=True)
    return found.neg_().add_(k - 1).long()


def _sum_of_squares(x: Tensor, axis: int) -> Tensor:
    # A norm along rows is one pass; across them it is not vectorised.
    return torch.linalg.vector_norm(x, dim=1, keepdim=True).square_() if axis else x.square().sum(0, keepdim=True)
