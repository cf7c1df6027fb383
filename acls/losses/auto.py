"""ACLS without a margin to tune: the validation set moves it."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import torch
from torch import Tensor

from acls import distributed
from acls.errors import InputError
from acls.losses.acls import ACLS
from acls.losses.base import About, Epoch
from acls.losses.margin import MarginTerm
from acls.losses.numerics import correctness, top
from acls.shapes import flatten

LARGEST = 1000.0
"""No logits differ by so much: the regulariser is off."""


class AutoACLS(ACLS):
    """ACLS whose margin follows the validation set: where confidence exceeds accuracy it shrinks, else it grows.

    After each epoch the scale s is found at which the mean confidence of softmax(s z) on the validation set equals the
    accuracy, and the margin is multiplied by s^rate. Were logits in proportion to the margin, one step at rate 1 would
    do; they follow slowly, and accuracy rises towards the end of training, hence 2. ``margin`` is where it starts; s is
    looked for between 1/4 and 4. The validation set has then been seen by training: measure on another one.
    """

    rate: float = 2.0

    about = About("ACLS with a margin that validation moves", "acls", "this package", 2026, kind="ACR")

    current_margin: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise InputError(f"rate={self.rate}: above 0 is called for")
        if self.margin == 0:
            raise InputError("margin=0: a margin that is multiplied starts above 0")
        super().__post_init__()
        self.register_buffer("current_margin", torch.tensor(self.margin, dtype=torch.float64))
        self._margin_now = self.margin

    def end_epoch(self, now: Epoch) -> None:
        """Move the margin by what the validation set says."""
        super().end_epoch(now)
        scale = confidence_scale(now, self.ignore_index)
        if scale is not None:
            self._margin_now = min(self._margin_now * scale**self.rate, LARGEST)
            self.current_margin.fill_(self._margin_now)

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)
        # A number beside the buffer: to read it from a GPU in every step would make the step wait.
        self._margin_now = float(self.current_margin)

    def _term(self, n_classes: int) -> MarginTerm:
        return replace(super()._term(n_classes), margin=self._margin_now)


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
