"""Numerically safe pieces that several losses share: finite for any finite logits, also in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acls.shapes import Positions

FAR = 1e15
"""A class whose logit lies this far below the largest, or is -inf, is masked: regularisers leave it out."""


def top(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each row and its class, both ``(M, 1)``; the first class where several tie."""
    predicted = first_equal(z, z.detach().amax(1, keepdim=True))
    return z.gather(1, predicted), predicted


def first_equal(z: Tensor, value: Tensor) -> Tensor:
    """Return the first class of each row whose entry equals ``value`` ``(M, 1)``.

    The same as an argmax or argmin, from an extreme that is known already: torch's own are not vectorised on a CPU
    and cost ten times as much on rows of 1000 classes.
    """
    classes = torch.arange(z.shape[1], device=z.device, dtype=torch.int32)
    return torch.where(z == value, classes, z.shape[1] - 1).amin(1, keepdim=True).long()


def log_confidence(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return log r and the predicted class, each ``(M,)``, where r is the largest softmax probability of the row."""
    largest, predicted = top(z)
    return (largest.squeeze(1) - z.logsumexp(1)), predicted.squeeze(1)


def log_complement(z: Tensor, label: Tensor) -> Tensor:
    """Return log(1 - p_label) of each row as LSE over the other classes minus LSE over all: no cancellation."""
    others = z.scatter(1, label.unsqueeze(1), -math.inf)
    return others.logsumexp(1) - z.logsumexp(1)


def target_logs(at: Positions) -> tuple[Tensor, Tensor]:
    """Return log p and log(1 - p) of the true class, each ``(M,)``; of every class, ``(M, K)``, under soft labels."""
    log_p = at.logits.log_softmax(1)
    if not at.soft:
        return log_p.gather(1, at.target.unsqueeze(1)).squeeze(1), log_complement(at.logits, at.target)
    _, predicted = top(at.logits)
    is_top = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, predicted, True)
    # Only the predicted class can have p > 1/2, where log1p(-p) would cancel.
    small = torch.log1p(-torch.where(is_top, -1.0, log_p).exp())
    return log_p, torch.where(is_top, log_complement(at.logits, predicted.squeeze(1)).unsqueeze(1), small)


def correctness(at: Positions, predicted: Tensor) -> Tensor:
    """Return 1 where the predicted class is the true one, else 0; under soft labels, that class's share. ``(M,)``."""
    if at.soft:
        return at.target.gather(1, predicted.unsqueeze(1)).squeeze(1)
    return (predicted == at.target).to(at.logits.dtype)
