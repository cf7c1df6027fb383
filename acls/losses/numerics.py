"""Numerically stable functions that several losses share. They are finite for any finite logits, also in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acls.shapes import Positions

FAR = 1e15
"""A class is masked if its logit is -inf or this far below the largest logit. The regularisers skip it."""


def top(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each row and its class, both ``(M, 1)``. If several tie, it is the first class."""
    predicted = first_equal(z, z.detach().amax(1, keepdim=True))
    return z.gather(1, predicted), predicted


def first_equal(z: Tensor, value: Tensor) -> Tensor:
    """Return the first class of each row whose entry equals ``value`` ``(M, 1)``.

    This is an argmax or argmin for a known extreme value. The functions of torch are not vectorised on a CPU and take
    ten times as long on rows of 1000 classes.
    """
    classes = torch.arange(z.shape[1], device=z.device, dtype=torch.int32)
    return torch.where(z == value, classes, z.shape[1] - 1).amin(1, keepdim=True).long()


def log_confidence(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return log r and the predicted class, each ``(M,)``, where r is the largest softmax probability of the row."""
    largest, predicted = top(z)
    return (largest.squeeze(1) - z.logsumexp(1)), predicted.squeeze(1)


def log_complement(z: Tensor, label: Tensor) -> Tensor:
    """Return log(1 - p_label) per row: LSE over the other classes minus LSE over all. This avoids cancellation."""
    others = z.scatter(1, label.unsqueeze(1), -math.inf)
    return others.logsumexp(1) - z.logsumexp(1)


def target_logs(at: Positions) -> tuple[Tensor, Tensor]:
    """Return log p and log(1 - p) of the true class, each ``(M,)``; with soft labels of every class, ``(M, K)``."""
    log_p = at.logits.log_softmax(1)
    if not at.soft:
        return log_p.gather(1, at.target.unsqueeze(1)).squeeze(1), log_complement(at.logits, at.target)
    _, predicted = top(at.logits)
    is_top = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, predicted, True)
    # log1p(-p) loses precision for p > 1/2, which only the predicted class can have.
    small = torch.log1p(-torch.where(is_top, -1.0, log_p).exp())
    return log_p, torch.where(is_top, log_complement(at.logits, predicted.squeeze(1)).unsqueeze(1), small)


def correctness(at: Positions, predicted: Tensor) -> Tensor:
    """Return ``(M,)``: 1 if the predicted class is the true one, else 0; with soft labels, the label of that class."""
    if at.soft:
        return at.target.gather(1, predicted.unsqueeze(1)).squeeze(1)
    return (predicted == at.target).to(at.logits.dtype)
