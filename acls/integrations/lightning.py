"""Calibration in Lightning: a callback that measures each validation epoch and supports losses with memory.

    class Net(LightningModule):
        def __init__(self):
            self.loss = acls.ACLS(margin=6.0)              # any loss of acls, called as torch's own
        ...
    Trainer(callbacks=[CalibrationCallback(save="val.npz")]).fit(Net(), ...)

Validation predictions come from ``validation_step``, which must call an acls loss once or return
``{"logits": logits, "target": target}``. Then ``val/ece``, ``val/aece``, ``val/nll``, ``val/brier``, ``val/accuracy``
and ``val/ece_floor`` (the ECE that a perfectly calibrated model would have at this n) can be monitored like any metric.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from acls.errors import InputError
from acls.integrations import importing
from acls.integrations.gather import KEEP, Gathered
from acls.integrations.hooks import LossHooks, find_loss
from acls.losses import Loss
from acls.metrics.bins import BINS
from acls.storage import check_form

with importing("lightning", extra="lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn

_WAY_OUT = 'Call it once, or return {"logits": logits, "target": target} from validation_step'


@dataclass(kw_only=True, eq=False)
class CalibrationCallback(Callback):
    """Logs calibration in each validation epoch, saves the predictions, and calls the hooks of losses with memory.

    Memory is bounded: metrics are sums, and at most ``keep`` logit values are stored. If there are more, a random
    sample of the rows is stored. Nothing is stored if neither ``save`` nor ``report`` names a file. With DDP, each
    sample counts once, even if the sampler repeats samples so that all processes have the same number.

    Pass ``loss`` if the module holds several losses or none. ``forward(module, batch)`` returns logits and target for
    the losses that use a whole split between epochs (CaPE, AdaFocal); by default, the batch is ``(x, y, ...)`` and the
    logits are ``module(x)``. This pass over the training set uses the user's own transforms, including random ones.
    """

    loss: Loss | None = None
    forward: Callable[[LightningModule, Any], tuple[Tensor, Tensor]] | None = None
    prefix: str = "val/"
    bins: int = BINS
    ignore_index: int | None = None
    save: str | os.PathLike[str] | None = None
    report: str | os.PathLike[str] | None = None
    keep: int = KEEP

    def __post_init__(self) -> None:
        if self.save is not None:
            check_form(self.save, "predictions")
        self.last: Gathered | None = None
        """The results of the last validation epoch for the first data loader, over all processes."""
        self._gathered: dict[int, Gathered] = {}
        self._warned = False

    # -- the loss's hooks --------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        def through(batch: Any) -> tuple[Tensor, Tensor]:
            with trainer.precision_plugin.forward_context():
                return (self.forward or _plain_forward)(pl_module, trainer.strategy.batch_to_device(batch))

        def loaders(split: str) -> Any:
            given = [trainer.train_dataloader] if split == "train" else _val_loaders(trainer)
            return given[0] if given else None

        self._hooks = LossHooks(self.loss or find_loss(pl_module), "val_dataloaders to fit")
        self._hooks.attach(pl_module, through, loaders)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._hooks.detach()
        if self.last is not None and trainer.is_global_zero and stage in ("fit", "validate"):
            self.last.report(self.report, meta=self._hooks.meta(epoch=trainer.current_epoch))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hooks.prepare()
        self._hooks.loss.to(pl_module.device)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hooks.start_epoch(trainer.current_epoch, _epochs(trainer))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._hooks.observe()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hooks.end_epoch(trainer.current_epoch, _epochs(trainer))
        mask = self._hooks.loss.keep_mask()
        if mask is not None and not bool(mask.all()) and not self._warned and not _honours_mask(trainer):
            rank_zero_warn(
                f"{self._hooks.loss!r} removes {int((~mask).sum())} samples from training, but the train loader's "
                "sampler still draws them: pass sampler=acls.data.indexed.KeptSampler(dataset, loss) to it"
            )
            self._warned = True

    # -- validation --------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._gathered = {}
        self._hooks.take()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        logits, target = self._validated(outputs)
        if dataloader_idx not in self._gathered:
            ignore_index = self._hooks.loss.ignore_index if self.ignore_index is None else self.ignore_index
            keep = self.keep if dataloader_idx == 0 and (self.save is not None or self.report is not None) else 0
            self._gathered[dataloader_idx] = Gathered(bins=self.bins, ignore_index=ignore_index, keep=keep)
        self._gathered[dataloader_idx].add_shared(logits, target, _sampler(_val_loaders(trainer)[dataloader_idx]))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for which, own in sorted(self._gathered.items()):
            whole = own.all_reduce(pl_module.device)
            if trainer.sanity_checking:
                continue
            self._check_counts(whole, _val_loaders(trainer)[which])
            suffix = f"/{which}" if len(self._gathered) > 1 else ""
            for name, value in whole.summary().items():
                # Already equal in all processes. The number of samples is not the batch size that Lightning expects.
                pl_module.log(f"{self.prefix}{name}{suffix}", value, rank_zero_only=False, batch_size=1)
            if which == 0:
                self.last = whole
        if self.last is not None and trainer.is_global_zero and not trainer.sanity_checking:
            self.last.save(self.save, meta=self._hooks.meta(epoch=trainer.current_epoch))

    def _validated(self, outputs: Any) -> tuple[Tensor, Tensor]:
        """Return logits and target of a validation step: its result, or the arguments of its call to the loss."""
        calls = self._hooks.take()
        if isinstance(outputs, Mapping) and "logits" in outputs and "target" in outputs:
            return outputs["logits"].detach(), outputs["target"]
        if len(calls) == 1:
            return calls[0][:2]
        got = f"called its loss of acls {len(calls)} times" if calls else "called no loss of acls"
        raise InputError(f"CalibrationCallback found no predictions: validation_step {got}. {_WAY_OUT}")

    def _check_counts(self, whole: Gathered, loader: Any) -> None:
        dataset: Any = getattr(loader, "dataset", None)
        if hasattr(dataset, "__len__") and whole.positions > len(dataset) and not self._warned:
            rank_zero_warn(
                f"validation counted {whole.positions} samples of a data set of {len(dataset)}: its sampler gives some "
                "samples to several processes, so the calibration metrics count them several times. Leave the sampler "
                "to Lightning, or use torch's DistributedSampler, whose padding is left out"
            )
            self._warned = True


def _epochs(trainer: Trainer) -> int:
    """Return the number of epochs, also if the training length is given in steps."""
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        return trainer.max_epochs
    return math.ceil(max(trainer.estimated_stepping_batches, 1) / max(trainer.num_training_batches, 1))


def _sampler(loader: Any) -> Any:
    return getattr(getattr(loader, "batch_sampler", None), "sampler", None) or getattr(loader, "sampler", None)


def _val_loaders(trainer: Trainer) -> list[Any]:
    return list(CombinedLoader(given).flattened) if (given := trainer.val_dataloaders) not in (None, [], ()) else []


def _honours_mask(trainer: Trainer) -> bool:
    from acls.data.indexed import KeptSampler

    sampler = getattr(trainer.train_dataloader, "sampler", None)
    inner = getattr(getattr(sampler, "dataset", None), "_sampler", None)  # Lightning's wrapper for several processes
    return isinstance(sampler, KeptSampler) or isinstance(inner, KeptSampler)


def _plain_forward(module: LightningModule, batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise InputError(
            f"expected a batch (x, y, ...), got {type(batch).__name__}: pass "
            "CalibrationCallback(forward=lambda module, batch: (logits, target)) to say how to predict one"
        )
    return module(batch[0]), batch[1]
