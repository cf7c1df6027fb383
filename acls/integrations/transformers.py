"""Calibration in the Transformers Trainer: losses, metrics and a callback, for sequences, tokens and answers.

    loss = compute_loss_func(acls.ACLS(margin=6.0))
    Trainer(
        model, args, train_dataset=..., eval_dataset=...,
        compute_loss_func=loss,
        compute_metrics=compute_metrics(),
        callbacks=[CalibrationCallback(loss)],       # for losses with memory, saved predictions and the report
    )

The shapes determine the task: logits ``(B, K)`` with labels ``(B,)`` are sequences or multiple choice; logits
``(B, T, K)`` with labels ``(B, T)`` are tokens, and tokens with the label -100 are ignored. For a language model that
answers with one of a few tokens, pass ``answers=[id of "A", id of "B", ...]``. Then only the logits of these tokens are
used, at positions whose label is one of them. Labels are shifted by one, because logits predict the next token.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from acls.errors import InputError
from acls.integrations import importing
from acls.integrations.gather import KEEP, Gathered
from acls.integrations.hooks import LossHooks
from acls.losses import Loss
from acls.metrics.bins import BINS
from acls.shapes import IGNORE_INDEX
from acls.storage import check_form, load_tensors, save_tensors

MEMORY = "acls_loss.safetensors"
"""The file for the memory of a loss, beside the model in the checkpoints of the Trainer."""

with importing("transformers", extra="transformers"):
    from transformers import EvalPrediction, TrainerCallback


class TrainerLayout:
    """Converts the logits and labels of the Trainer to ``(N, K, *D)`` and ``(N, *D)``."""

    def __init__(self, answers: Sequence[int] | None = None) -> None:
        if answers is not None and len(set(answers)) < 2:
            raise InputError(f"expected answers of at least two different token ids, got {list(answers)!r}")
        self.answers = None if answers is None else torch.tensor(list(answers))

    def __call__(self, outputs: Any, labels: Any) -> tuple[Tensor, Tensor]:
        """Return logits with the classes on axis 1, and the target."""
        if isinstance(outputs, dict):  # as every ModelOutput is
            outputs = outputs["logits"]
        elif isinstance(outputs, tuple | list):
            outputs = outputs[0]
        logits, target = torch.as_tensor(outputs), torch.as_tensor(labels)
        if self.answers is not None:
            return _answered(logits, target, self.answers.to(target.device))
        if logits.ndim == 3 and target.shape == logits.shape[:2]:
            return logits.movedim(-1, 1), target
        if logits.ndim == 2 and logits.shape[1] == 1:
            raise InputError("the model has one output, as for regression: set num_labels to the number of classes")
        return logits, target


def _answered(logits: Tensor, labels: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of some tokens at positions where the label, shifted by one, is one of them."""
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise InputError(
            f"expected logits (B, T, tokens) and labels (B, T) of a language model with answers=, got "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    hit = labels[:, 1:, None] == tokens
    answered = hit.any(-1)
    return logits[:, :-1][answered][:, tokens], hit[answered].long().argmax(-1)


class LossFunction:
    """The function that the Trainer calls with model outputs and labels; created by `compute_loss_func`."""

    def __init__(self, loss: Loss, layout: TrainerLayout) -> None:
        if loss.reduction != "mean":
            raise InputError(
                f'{loss!r}: expected reduction="mean", because the Trainer itself weights the parts of a batch'
            )
        self.loss, self.layout = loss, layout
        self.index: Tensor | None = None
        """The indices of the samples in the current batch, if the callback finds them there."""

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the loss, weighted by the share of the labels of the accumulated batch that this batch has."""
        logits, target = self.layout(outputs, labels)
        if next(self.loss.buffers(), logits).device != logits.device:
            self.loss.to(logits.device)
        self.loss.train(torch.is_grad_enabled())  # the Trainer evaluates without gradients
        value: Tensor = self.loss(logits, target, index=self.index)
        if num_items_in_batch is None:
            return value
        counted = labels[..., 1:] if self.layout.answers is not None else labels
        return value * (counted != IGNORE_INDEX).sum() / num_items_in_batch


def compute_loss_func(loss: Loss, *, answers: Sequence[int] | None = None) -> LossFunction:
    """Return an acls loss in the form that ``Trainer(compute_loss_func=...)`` expects.

    With gradient accumulation, it is the mean over all labels of the accumulated batches. In evaluation, the loss does
    not use its memory of the training samples.
    """
    return LossFunction(loss, TrainerLayout(answers))


class Metrics:
    """The function that the Trainer calls with predictions and labels; created by `compute_metrics`."""

    def __init__(self, layout: TrainerLayout, *, bins: int, keep: int) -> None:
        self.layout, self.bins, self.keep = layout, bins, keep
        self.last: Gathered | None = None
        """The results of the last evaluation."""
        self._now: Gathered | None = None

    def __call__(self, evaluated: EvalPrediction, compute_result: bool = True) -> dict[str, float]:
        """Return the metrics of an evaluation; with ``compute_result=False``, only count the batch."""
        if self._now is None:
            self._now = Gathered(bins=self.bins, keep=self.keep)
        self._now.add(*self.layout(evaluated.predictions, evaluated.label_ids))
        if not compute_result:
            return {}
        self.last, self._now = self._now, None
        return self.last.summary()


def compute_metrics(*, answers: Sequence[int] | None = None, bins: int = BINS, keep: int = 0) -> Metrics:
    """Return a function for ``Trainer(compute_metrics=...)`` that computes accuracy and calibration metrics.

    The metrics are accuracy, ECE, adaptive ECE, NLL, Brier score and the noise floor of the ECE. They are named
    ``eval_ece`` and so on, and can be used in ``metric_for_best_model``. The Trainer keeps all logits until the
    evaluation ends; with ``TrainingArguments(batch_eval_metrics=True)``, memory is bounded. At most ``keep`` scores are
    kept, which `CalibrationCallback` can save.
    """
    return Metrics(TrainerLayout(answers), bins=bins, keep=keep)


class CalibrationCallback(TrainerCallback):
    """Calls the hooks of losses with memory, and writes the predictions and the report of the last evaluation.

    A loss that stores values per sample (CRL, CaPE, Patra) reads the sample indices from ``"index"`` in the batch:
    use ``train_dataset=acls.data.indexed.Indexed(dataset)`` and ``TrainingArguments(remove_unused_columns=False)``.
    ``val_dataset`` is for AdaFocal, which uses a validation set after each epoch. The memory of a loss is saved with
    each checkpoint, and loaded by ``train(resume_from_checkpoint=True)``.
    """

    def __init__(
        self,
        loss: LossFunction | None = None,
        *,
        metrics: Metrics | None = None,
        val_dataset: Any = None,
        save: str | os.PathLike[str] | None = None,
        report: str | os.PathLike[str] | None = None,
    ) -> None:
        if (save is not None or report is not None) and metrics is None:
            raise InputError(
                "save= and report= need metrics=, which collects the predictions: metrics = compute_metrics(); "
                "Trainer(..., compute_metrics=metrics, callbacks=[CalibrationCallback(metrics=metrics, save=...)])"
            )
        if save is not None:
            check_form(save, "predictions")
        self.metrics, self.val_dataset, self.save, self.report = metrics, val_dataset, save, report
        if metrics is not None and (save is not None or report is not None) and not metrics.keep:
            metrics.keep = KEEP
        self._loss = loss
        self._hooks = LossHooks(None if loss is None else loss.loss, "CalibrationCallback(val_dataset=...)")

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Make sure that ``index`` is passed to the loss and not to the model."""
        function = self._loss
        if function is None or model is None:
            return

        def note(_model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            function.index = kwargs.pop("index", None)
            return args, kwargs

        model.register_forward_pre_hook(note, with_kwargs=True)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, train_dataloader: Any = None, **_: Any
    ) -> None:
        if self._loss is None:
            return
        layout, loss = self._loss.layout, self._loss.loss

        def through(batch: Any) -> tuple[Tensor, Tensor]:
            inputs = {name: value.to(args.device) for name, value in batch.items() if isinstance(value, Tensor)}
            labels = inputs.pop("labels")
            logits, target = layout(model(**inputs), labels)
            if len(target) != len(labels):
                raise InputError(
                    f"{loss!r} stores values per sample: expected one answer per sample, got {len(target)} in total"
                )
            return logits, target

        def loaders(split: str) -> Any:
            dataset = train_dataloader.dataset if split == "train" else self.val_dataset
            batch, collate = args.per_device_eval_batch_size, train_dataloader.collate_fn
            return None if dataset is None else DataLoader(dataset, batch_size=batch, collate_fn=collate)

        self._hooks.attach(model, through, loaders)
        memory = _memory(args, state)
        if memory.is_file():  # training continues after an interruption
            loss.load_state_dict(load_tensors(memory)[0])
        elif state.global_step > 0 and loss.needs_index:
            warnings.warn(f"{memory.parent} contains no {MEMORY}: {loss!r} starts with an empty memory", stacklevel=2)
        self._hooks.prepare()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._hooks.start_epoch(*_epoch(state, done=round(state.epoch or 0)))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._hooks.observe()

    on_substep_end = on_step_end

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._hooks.end_epoch(*_epoch(state, done=round(state.epoch or 1) - 1))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._loss is not None and state.is_world_process_zero and self._loss.loss.state_dict():
            save_tensors(_memory(args, state), self._loss.loss.state_dict(), {"loss": repr(self._loss.loss)})

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._hooks.take()
        if self.metrics is not None and self.metrics.last is not None and state.is_world_process_zero:
            self.metrics.last.save(self.save, meta=self._hooks.meta(step=state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._hooks.detach()
        if self.metrics is not None and self.metrics.last is not None and state.is_world_process_zero:
            self.metrics.last.report(self.report, meta=self._hooks.meta(step=state.global_step))


def _memory(args: Any, state: Any) -> Path:
    """Return the path of the memory of the loss in the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / MEMORY


def _epoch(state: Any, *, done: int) -> tuple[int, int]:
    """Return the number of the epoch, and the total number of epochs."""
    total = max(1, round(state.num_train_epochs))
    return min(done, total - 1), total
