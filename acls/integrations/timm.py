"""Calibration in timm: any loss of acls as the criterion of its training script or task, soft targets of Mixup too.

Losses take ``(N, K)`` soft targets as they take class ids, so a criterion is a loss; `criterion` only says in time what
would not fit. timm's ``train.py`` needs four lines more:

    from acls.integrations.timm import calibration, criterion        # with the imports

    train_loss_fn = criterion("ACLS(margin=6)", mixup_fn).to(device)  # after its own train_loss_fn is made

    if utils.is_primary(args):                                        # after eval_metrics = validate(...)
        eval_metrics.update(calibration(model, loader_eval))          # top1, top5, and now ece, nll, ... in summary.csv

With ``timm.task``: ``ClassificationTask(model, criterion(acls.ACLS(margin=6.0), mixup_fn))``. For losses that remember
samples (CRL, CaPE, AdaFocal, Patra) see `acls.integrations.loop.epochs`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from acls.errors import InputError
from acls.integrations import importing
from acls.integrations.gather import Gathered
from acls.losses import Loss
from acls.losses.naming import parse_losses
from acls.metrics.bins import BINS

with importing("timm", extra="vision"):
    from timm.data.mixup import Mixup


def criterion(loss: Loss | str, mixup: Mixup | None = None) -> Loss:
    """The loss, after a look at what ``mixup`` (a ``timm.data.Mixup`` or a FastCollateMixup) makes of the labels.

    Raises for a loss that must know each sample's class. Warns where Mixup smooths the labels by itself, as it does by
    0.1 unless told otherwise: the loss would smooth them a second time.
    """
    if isinstance(loss, str):
        named = parse_losses(loss)
        if len(named) != 1:
            raise InputError(f"{loss!r} names {len(named)} losses, but one is called for")
        loss = named[0]
    if mixup is None:
        return loss
    if any(part.refuses_soft_targets for part in loss.stack()):
        raise InputError(f"{loss!r} needs to know each sample's class: train without --mixup and --cutmix")
    smoothing = getattr(mixup, "label_smoothing", 0.0)
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

    The model is put in eval mode for it. Inputs are moved to the model's device; of several outputs the first counts,
    as in timm's own validation.
    """
    gathered = Gathered(bins=bins)
    place = next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        for images, target in loader:
            output = model(images.to(place))
            logits = output[0] if isinstance(output, tuple | list) else output
            gathered.add(logits, target.to(logits.device))
    finally:
        model.train(training)
    return gathered.summary()
