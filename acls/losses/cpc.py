"""Calibration by pairwise constraints (CPC), in O(N K) memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from acls.losses.base import About, Regularized
from acls.losses.numerics import FAR
from acls.losses.rule import Rule, gradient_rule
from acls.options import option
from acls.shapes import Positions

# The number of pairs per block, so that a block fits in the processor's cache.
_PAIRS_AT_ONCE = 1 << 19


class _AllPairs(torch.autograd.Function):
    """The sum over all ordered pairs of classes of h(z_k - z_l), h(d) = |d|/2 + log(1 + exp(-|d|)). ``(M,)``.

    One pass over blocks of pairs computes both the value and the gradient, sum_l tanh((z_j - z_l)/2). No pairs are
    stored.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, z: Tensor) -> Tensor:
        value, gradient = torch.zeros_like(z[:, 0]), torch.empty_like(z)
        for rows in _blocks(z.shape[0], _PAIRS_AT_ONCE // z.shape[1]):
            part = z[rows]
            for classes in _blocks(z.shape[1], _PAIRS_AT_ONCE // part.numel()):
                difference = part[:, classes, None] - part[:, None, :]
                # Summed over ordered pairs, softplus(d) equals h(d).
                value[rows] += F.softplus(difference).sum((1, 2))
                gradient[rows, classes] = torch.tanh_(difference.mul_(0.5)).sum(2)
        ctx.save_for_backward(z, gradient)
        return value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        z, gradient = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            gradient = torch.tanh((z.unsqueeze(2) - z.unsqueeze(1)) / 2).sum(2)  # for second derivatives
        result: Tensor = gradient * grad_output.unsqueeze(1)
        return result


def _blocks(n: int, size: int) -> list[slice]:
    size = max(1, size)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def one_versus_one(z: Tensor, y: Tensor) -> Tensor:
    """Return the mean over the other classes k of softplus(z_k - z_y), ``(M,)``."""
    # The true class itself contributes log 2.
    return (F.softplus(z - z.gather(1, y.unsqueeze(1))).sum(1) - F.softplus(z.new_zeros(()))) / (z.shape[1] - 1)


def binary_exclusion(z: Tensor, y: Tensor) -> Tensor:
    """Return the sum over ordered pairs of wrong classes k, l of softplus(z_l - z_k)/2, over (K-1)(K-2). ``(M,)``.

    Pairs k = l are included, as in the reference. The sum is computed as the sum over all pairs of classes minus the
    pairs with the true class, so it needs no N x K x K tensor.
    """
    n_classes = z.shape[1]
    # A masked class gets the logit of the true class, so that it is subtracted together with the true class.
    masked = z.detach().amax(1, keepdim=True) - z.detach() > FAR
    left_out = 1 + masked.sum(1).to(z.dtype)
    z = torch.where(masked, z.gather(1, y.unsqueeze(1)), z)
    with_true = z - z.gather(1, y.unsqueeze(1))
    of_true = (F.softplus(with_true) + F.softplus(-with_true)).sum(1)
    everything: Tensor = _AllPairs.apply(z)  # type: ignore[no-untyped-call]
    pairs = everything - left_out * of_true + left_out**2 * F.softplus(z.new_zeros(()))
    return 0.5 * pairs / ((n_classes - 1) * (n_classes - 2))


class CPC(Regularized):
    """Cross-entropy plus two pairwise terms: true class against each other class (1v1), and wrong classes (BE).

    The loss is L + weight_1v1 mean_k softplus(z_k - z_y) + weight_be mean_kl softplus(z_l - z_k)/2. The BE term (binary
    exclusion) makes the logits of the wrong classes more equal. In the paper's terms the pivot is the true class, and
    its label is raised (f_y < 0). For two classes BE is 0, because there are no pairs of wrong classes.
    Cheng and Vasconcelos, CVPR 2022; normalised as in the only public implementation (CALS).
    """

    weight_1v1: float = option(default=0.1, within="[0, inf)")
    weight_be: float = option(default=1.0, within="[0, inf)")

    refuses_soft_targets = True
    about = About("Calibration by pairwise constraints", "Cheng and Vasconcelos", "CVPR", 2022, kind="AR")

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        parts = {"1v1": self.weight_1v1 * one_versus_one(at.logits, at.target)}
        if at.n_classes > 2:
            parts["be"] = self.weight_be * binary_exclusion(at.logits, at.target)
        return parts

    def rule(self, n_classes: int) -> Rule | None:
        down = "-λ1/(K-1) Σ_k≠y p_k/(p_k + p_y)"
        up = "-λ1/(K-1) p_j/(p_j + p_y) + λ2/(2(K-1)(K-2)) Σ_l≠y (p_l - p_j)/(p_l + p_j)"
        return self.rule_on_cross_entropy(gradient_rule(self.excess, down, up, pivot="true"))
