"""Calibration in timm: any loss of acls as the criterion of its training script or task, soft targets of Mixup too.

Losses take ``(N, K)`` soft targets as they take class ids, so a criterion is a loss; `criterion` only says in time what
would not fit. With ``timm.task`` it is ``ClassificationTask(model, criterion("ACLS(margin=6)", mixup))``. timm's
``train.py`` needs five lines more, which the guide *Where you train already* shows: an option ``--acls LOSS``, and
``calibration(model, loader)`` at the end of ``validate``. For losses that remember samples (CRL, CaPE, AdaFocal, Patra)
see `acls.integrations.loop.epochs`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler, SequentialSampler

from acls.errors import InputError
from acls.integrations import importing
from acls.integrations.gather import Gathered
from acls.losses import Loss, make_loss
from acls.metrics.bins import BINS
from acls.modules import evaluating

with importing("timm", extra="vision"):
    from timm.data.mixup import Mixup


def criterion(loss: Loss | str, mixup: Mixup | Mapping[str, Any] | None = None) -> Loss:
    """Return the loss after checking that it works with the labels that ``mixup`` makes.

    That is any of timm's: Mixup, FastCollateMixup or NaFlexMixup, or the settings that one is made with. Raises for a
    loss that must know each sample's class. Warns where Mixup smooths the labels itself, by 0.1 by default:
    the loss would smooth them a second time.
    """
    loss = make_loss(loss)
    if mixup is None:
        return loss
    if any(part.refuses_soft_targets for part in loss.stack()):
        raise InputError(f"{loss!r} needs to know each sample's class: train without --mixup and --cutmix")
    if isinstance(mixup, Mapping):
        smoothing = float(mixup.get("label_smoothing", 0.1))
    else:
        smoothing = float(getattr(mixup, "label_smoothing", getattr(mixup, "smoothing", 0.0)))
    if smoothing:
        warnings.warn(
            f"Mixup smooths the labels by {smoothing:g} before {loss!r} sees them: pass --smoothing 0, or "
            "Mixup(label_smoothing=0), to leave smoothing to the loss",
            stacklevel=2,
        )
    return loss


@torch.no_grad()
def calibration(model: nn.Module, loader: Iterable[tuple[Any, Any]], *, bins: int = BINS) -> dict[str, float]:
    """Accuracy, ECE, adaptive ECE, NLL, Brier score and the ECE's noise floor of a loader of ``(input, target)``.

    The model is put in eval mode for it. Inputs are moved to where its weights are; of several outputs the first
    counts, as in timm's own validation. Where several processes share the data, all of them call it and get the numbers
    of the whole, without the samples that the sampler repeats to give every process as many.
    """
    gathered = Gathered(bins=bins)
    weight = next(model.parameters())
    sampler = getattr(loader, "sampler", None)
    with evaluating(model):
        for given, target in loader:
            output = model(given.to(weight) if isinstance(given, Tensor) else given)  # NaFlex: a dict, in its place
            logits = output[0] if isinstance(output, tuple | list) else output
            gathered.add_shared(logits, target.to(logits.device), sampler)
    if isinstance(sampler, SequentialSampler | RandomSampler):  # each process has seen all there is
        return gathered.summary()
    return gathered.all_reduce(weight.device).summary()
