"""The margin terms of MbLS and ACLS, and the pass that computes such a loss and its gradient at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from acls.losses.numerics import first_equal, top

# Logits looked at in one go, so that what is made of them stays in the processor's cache.
_LOGITS_AT_ONCE = 1 << 17
# Up to here inductor's code for the one pass is the faster one, beyond it its code for autograd's graph.
_LOGITS_COMPILED_IN_ONE_PASS = 1 << 14


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

    def with_cross_entropy(self, z: Tensor, y: Tensor) -> Tensor | None:
        """Return cross-entropy plus this term, one value a position, from one pass that keeps only the gradient.

        None where autograd does better: in compiled code on large inputs.
        """
        if not self.clipped or (torch.compiler.is_compiling() and z.numel() > _LOGITS_COMPILED_IN_ONE_PASS):
            return None
        values: Tensor = _OnePass.apply(z, y, self)  # type: ignore[no-untyped-call]
        return values


class _OnePass(torch.autograd.Function):
    """Cross-entropy plus a `MarginTerm`, ``(M,)``; the gradient is made on the way and is all that is kept."""

    @staticmethod
    def forward(ctx: FunctionCtx, z: Tensor, y: Tensor, term: MarginTerm) -> Tensor:
        step = max(1, _LOGITS_AT_ONCE // z.shape[1])
        if torch.compiler.is_compiling() or z.shape[0] <= step:
            values, gradient = _value_and_gradient(z, y, term)
        else:
            values, gradient = z.new_empty(z.shape[0]), torch.empty_like(z)
            for start in range(0, z.shape[0], step):
                rows = slice(start, start + step)
                values[rows], _ = _value_and_gradient(z[rows], y[rows], term, out=gradient[rows])
        ctx.save_for_backward(gradient)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_output.unsqueeze(1), None, None


def _value_and_gradient(z: Tensor, y: Tensor, term: MarginTerm, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    true = y.unsqueeze(1)
    largest = z.amax(1, keepdim=True)
    below = z - largest  # at most 0
    # Minus the other classes' excess over the margin; where nothing exceeds it, 0.
    excess = (below + term.margin).clamp_(max=0)
    value = -below.gather(1, true)
    p = below.exp_()
    total = p.sum(1, keepdim=True)
    value += total.log()
    gradient = torch.div(p, total, out=out)
    slope = excess.sign() if term.power == 1 else 2 * excess
    gradient.add_(slope, alpha=term.up)
    value -= (
        term.up * excess.sum(1, keepdim=True) if term.power == 1 else -term.up * excess.square().sum(1, keepdim=True)
    )
    pull = torch.zeros_like(value) if term.stopped else slope.sum(1, keepdim=True).mul_(-term.up)
    if term.down:
        lowest = excess.amin(1, keepdim=True)
        top_excess = (largest - term.margin).relu_() if term.from_zero else -lowest
        weight = torch.full_like(value, term.down)
        if term.from_zero:
            weight *= (z == largest).sum(1, keepdim=True)
        value += weight * (top_excess if term.power == 1 else top_excess.square())
        push = weight * (top_excess.sign() if term.power == 1 else 2 * top_excess)
        pull = pull + push
        if not (term.stopped or term.from_zero):
            # Where nothing exceeds the margin the first class is found, and moved by 0.
            gradient.scatter_add_(1, first_equal(excess, lowest), -push)
    gradient.scatter_add_(1, first_equal(z, largest), pull)
    gradient.scatter_add_(1, true, torch.full_like(value, -1.0))
    return value.squeeze(1), gradient
