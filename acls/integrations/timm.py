"""Calibration in timm: use any acls loss as the criterion of its training script or task, also with Mixup.

Losses accept soft targets ``(N, K)`` as well as class ids, so a loss can be used as a criterion directly; `criterion`
only checks early that they fit together. With ``timm.task``, write
``ClassificationTask(model, criterion("ACLS(margin=6)", mixup))``. The ``train.py`` of timm needs five more lines, which
the guide *Where you train already* shows: an option ``--acls LOSS``, and ``calibration(model, loader)`` at the end of
``validate``. For losses with memory (CRL, CaPE, AdaFocal, Patra), see `acls.integrations.loop.epochs`.
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

    ``mixup`` is a Mixup, FastCollateMixup or NaFlexMixup of timm, or the settings of one. Raises an error for a loss
    that must know the class of each sample. Warns if Mixup itself smooths the labels (by 0.1 by default), because the
    loss would smooth them a second time.
    """
    loss = make_loss(loss)
    if mixup is None:
        return loss
    if any(part.refuses_soft_targets for part in loss.stack()):
        raise InputError(f"{loss!r} needs class ids as targets: train without --mixup and --cutmix")
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
    """Compute accuracy, ECE, adaptive ECE, NLL, Brier score and the ECE noise floor for ``(input, target)`` batches.

    The model is evaluated in eval mode. Inputs are moved to the device of its weights. If there are several outputs,
    the first is used, as in the validation of timm. If several processes share the data, all of them must call this
    function. Each gets the metrics of the whole data, without the samples that the sampler repeats as padding.
    """
    gathered = Gathered(bins=bins)
    weight = next(model.parameters())
    sampler = getattr(loader, "sampler", None)
    with evaluating(model):
        for given, target in loader:
            output = model(given.to(weight) if isinstance(given, Tensor) else given)  # NaFlex: a dict on the device
            logits = output[0] if isinstance(output, tuple | list) else output
            gathered.add_shared(logits, target.to(logits.device), sampler)
    if isinstance(sampler, SequentialSampler | RandomSampler):  # each process has seen all samples
        return gathered.summary()
    return gathered.all_reduce(weight.device).summary()
