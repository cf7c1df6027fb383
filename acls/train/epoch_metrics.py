"""The numbers of an epoch: what a user wants to see of calibration while the network trains.

The effective label q' = softmax(z) - dL/dz is what the loss really trains a position towards; with the one-hot label q,
q - q' is what its regulariser takes from each class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from acls import distributed
from acls.calibrators import Temperature
from acls.data.dataset import SampleBatch
from acls.losses import Loss, effective_label
from acls.shapes import flatten, flatten_logits

SAMPLE = 2**24
"""Logits kept of an evaluation for these numbers, over all processes: all of ImageNet's validation part."""
ACTIVE = 1e-6
"""The least change of a label by which the regulariser counts as active: above the rounding of float32."""


class Sample:
    """Logits and targets of an evaluation, of dense maps a grid of pixels, so that memory stays bounded."""

    def __init__(self, samples: int) -> None:
        """Take the number of samples, over all processes."""
        self.samples = samples
        self.batches: list[SampleBatch] = []

    def add(self, logits: Tensor, target: Tensor, index: Tensor) -> None:
        if logits.ndim == 4:
            stride = max(math.ceil((self.samples * logits[0].numel() / SAMPLE) ** 0.5), 1)
            logits, target = logits[:, :, ::stride, ::stride], target[:, ::stride, ::stride]
        self.batches.append((logits, target, index))

    def rows(self, void: int) -> tuple[Tensor, Tensor]:
        """The labelled positions of all processes."""
        flat = [flatten(logits, target, ignore_index=void).compact() for logits, target, _ in self.batches]
        logits, target = torch.cat([at.logits for at in flat]), torch.cat([at.target for at in flat])
        return distributed.all_gather(logits), distributed.all_gather(target)


def above_margin(logits: Tensor, margin: float) -> dict[str, float]:
    """Shares of positions on which a regulariser with this margin acts.

    ``gap_above_margin``: the largest logit minus the smallest is above it, as ACLS measures in the paper;
    ``top_above_margin``: the largest logit itself is, as its released code does.
    """
    low, high = logits.aminmax(dim=1)
    mean = {"gap_above_margin": high - low > margin, "top_above_margin": high > margin}
    return {name: float(above.double().mean()) for name, above in mean.items()}


def outlook(sample: Sample, void: int, margin: float) -> dict[str, float]:
    """Mean largest logit, mean distance of it from the smallest, how many exceed the margin, and the fitting T.

    ``ece_after_temperature`` is the ECE that this T leaves, on the samples that it was fitted on.
    """
    logits, target = sample.rows(void)
    if len(target) == 0:
        names = ("top_logit", "logit_gap", "gap_above_margin", "top_above_margin", "temperature")
        return dict.fromkeys((*names, "ece_after_temperature"), math.nan)
    scaling = Temperature().fit(logits, target)
    low, high = logits.aminmax(dim=1)
    return {
        "top_logit": float(high.mean()),
        "logit_gap": float((high - low).mean()),
        **above_margin(logits, margin),
        "temperature": float(scaling.temperature),
        "ece_after_temperature": scaling.report.after.ece,
    }


def regulariser(loss: Loss, batches: Iterable[SampleBatch], void: int) -> dict[str, float]:
    """What the regulariser does to the labels of some batches, over all processes.

    ``regulariser_active``: share of positions where a label is changed at all. ``regulariser_flips``: share where
    moving the logits by the change of the label, z + q' - q, changes the prediction. ``smoothing_predicted``: mean of
    q - q' at the predicted class; ``smoothing_others``: mean of q' - q over the other classes.
    """
    sums = torch.zeros(5, dtype=torch.float64)
    for logits, target, index in batches:
        label = effective_label(loss, logits, target, index=index if loss.needs_index else None)
        at = flatten(logits, target, ignore_index=void)
        change = flatten_logits(label) - F.one_hot(at.target, at.n_classes)
        z = at.logits
        if at.valid is not None:
            change, z = change[at.valid], z[at.valid]
        predicted = z.argmax(1, keepdim=True)
        taken = -change.gather(1, predicted)[:, 0]
        given = (change.sum(1) + taken) / max(at.n_classes - 1, 1)
        active = (change.abs() > ACTIVE).any(1)
        flips = (z + change).argmax(1) != predicted[:, 0]
        parts = (active.sum(), flips.sum(), taken.double().sum(), given.double().sum(), torch.tensor(len(z)))
        sums += torch.stack([part.double().cpu() for part in parts])
    sums = distributed.all_reduce(sums)
    means = (sums[:4] / sums[4].clamp(min=1)).tolist()
    names = ("regulariser_active", "regulariser_flips", "smoothing_predicted", "smoothing_others")
    return dict(zip(names, means, strict=True))
