"""ACLS without a margin to tune: the validation set moves it."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor

from acls import distributed
from acls.losses.acls import ACLS
from acls.losses.base import About, Epoch
from acls.losses.numerics import correctness, top
from acls.options import option
from acls.shapes import flatten


class AutoACLS(ACLS):
    """ACLS whose margin follows the validation set: it shrinks where confidence exceeds accuracy, and else grows.

    After each epoch the scale s is found at which the mean confidence of softmax(s z) on the validation set equals the
    accuracy, and the margin is multiplied by s^rate. ``margin`` is where it starts, and it stays between margin/reach
    and margin*reach. Logits follow the margin an epoch late, so the log of the margin obeys x_{t+1} = x_t - rate
    x_{t-1}, which oscillates without end at rate 1 and diverges above; at 0.5 a deviation shrinks by 0.71 per epoch.
    The validation set has then been seen by training: measure on another one.
    """

    margin: float = option(default=10.0, within="(0, inf)")
    rate: float = option(default=0.5, within="(0, inf)")
    reach: float = option(default=4.0, within="[1, inf)")

    about = About("ACLS with a margin that validation moves", "acls", "this package", 2026, kind="ACR")

    current_margin: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("current_margin", torch.tensor(self.margin, dtype=torch.float64))

    def end_epoch(self, now: Epoch) -> None:
        """Move the margin by what the validation set says."""
        super().end_epoch(now)
        scale = confidence_scale(now, self.ignore_index)
        if scale is not None:
            self.current_margin.mul_(scale**self.rate).clamp_(self.margin / self.reach, self.margin * self.reach)

    def _margin(self) -> Tensor:
        return self.current_margin


@torch.no_grad()
def confidence_scale(now: Epoch, ignore_index: int) -> float | None:
    """The factor on the logits, 1/4 to 4, that makes the mean confidence on the validation set its accuracy.

    None for a validation set without labels. It is read off between 65 factors whose confidences are added up in one
    pass, so nothing of the set is kept.
    """
    factors = torch.logspace(-2, 2, 65, base=2, dtype=torch.float64)
    sums: Tensor | None = None
    for logits, target, _ in now.predict("val"):
        at = flatten(logits, target, ignore_index=ignore_index).compact()
        largest, predicted = top(at.logits)
        below = at.logits - largest
        confidence = [1 / (float(factor) * below).exp().sum(1) for factor in factors]
        hits = correctness(at, predicted.squeeze(1))
        counted = torch.stack(
            [*(part.sum(dtype=torch.float64) for part in (*confidence, hits)), hits.new_tensor(len(hits))]
        )
        sums = counted if sums is None else sums + counted
    total = distributed.all_reduce(torch.zeros(len(factors) + 2, dtype=torch.float64) if sums is None else sums).cpu()
    *confidences, hit, count = total.tolist()
    if count == 0:
        return None
    above = next((place for place, value in enumerate(confidences) if value >= hit), len(confidences))
    if above in (0, len(confidences)):
        return float(factors[min(above, len(confidences) - 1)])
    low, high = confidences[above - 1], confidences[above]
    share = (hit - low) / (high - low) if high > low else 1.0
    return float(factors[above - 1] * (factors[above] / factors[above - 1]) ** share)
