"""Calibration metrics for torchmetrics. States are sums, so memory is constant and processes add up exactly.

They work in Lightning, in `torchmetrics.MetricCollection`, and wherever a `torchmetrics.Metric` is accepted. Unlike in
torchmetrics, nothing is guessed from the values: ``from_logits`` says whether predictions are logits. ``plot()``
draws a reliability diagram. ``task="binary"`` takes the scores ``(N,)`` or ``(N, 1)`` of class 1 and counts them as two
classes. It measures the calibration of the predicted class, while torchmetrics measures that of class 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from acls.arrays import scored
from acls.errors import InputError, suggest
from acls.integrations import importing
from acls.metrics.batch import Batch
from acls.metrics.bins import BINS, Bins, Reliability
from acls.metrics.cells import Cells
from acls.metrics.classwise import ClasswiseBins
from acls.metrics.confidences import Confidences
from acls.metrics.ordered import adaptive_ece
from acls.metrics.smooth import smooth_ece
from acls.shapes import IGNORE_INDEX

with importing("torchmetrics", extra="torchmetrics"):
    from torchmetrics import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Task = Literal["binary", "multiclass"]
NORMS = {"l1": "ece", "l2": "rmsce", "max": "mce"}


class _SumMetric(Metric):
    """A metric whose states are sums over samples."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    tally: ClassVar[Any]
    """The tally that counts a batch."""
    measure = "ece"
    """The property of the tally that `compute` returns."""

    def __init__(
        self,
        num_classes: int | None = None,
        n_bins: int = BINS,
        ignore_index: int | None = None,
        *,
        task: Task = "multiclass",
        from_logits: bool,
        **kwargs: Any,
    ) -> None:
        if task == "binary":
            num_classes = num_classes or 2
        elif task != "multiclass":
            raise InputError(
                f"expected task 'binary' or 'multiclass', got {task!r}: for several labels per sample (multilabel) "
                "use one metric with task='binary' per label and update it with preds[:, k] and target[:, k]"
            )
        if num_classes is None or num_classes < 2 or (task == "binary" and num_classes > 2):
            wanted = "2" if task == "binary" else "2 or more"
            raise InputError(f"expected num_classes of {wanted} for task={task!r}, got {num_classes}")
        super().__init__(**kwargs)
        self.num_classes, self.n_bins, self.ignore_index = num_classes, n_bins, ignore_index
        self.task, self.from_logits = task, from_logits
        for name, total in self._sums(torch.empty(0, num_classes), torch.empty(0, dtype=torch.long)).items():
            # Always float64, because all processes must use the same type; counts are exact up to 2^53.
            self.add_state(name, torch.zeros_like(total, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> None:
        """Count a batch: predictions ``(N, K, *D)``, of two classes also ``(N,)`` or ``(N, 1)``; target ``(N, *D)``.

        A sample of weight w counts as w equal samples; ``sample_weight`` is ``(N,)`` or ``(N, *D)``.
        """
        binary = self.num_classes == 2 and (preds.ndim == 1 or preds.shape[1:] == (1,))
        if not binary and (preds.ndim < 2 or preds.shape[1] != self.num_classes):
            raise InputError(
                f"expected preds of shape (N, {self.num_classes}, ...) for num_classes={self.num_classes}, got "
                f"{tuple(preds.shape)}: axis 1 holds the classes"
            )
        for name, total in self._sums(preds, target, sample_weight).items():
            setattr(self, name, getattr(self, name) + total)

    def plot(self, val: Any = None, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Draw the reliability diagram of all counted samples; ``val`` is for torchmetrics and is ignored."""
        from acls.report.figures.reliability import plot

        return plot(self._reliability(), ax)

    def _sums(self, preds: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> dict[str, Tensor]:
        ignore_index = IGNORE_INDEX if self.ignore_index is None else self.ignore_index
        scores, labels, kind = scored(preds, target, "logits" if self.from_logits else "probs")
        batch = Batch.of(scores, labels, kind=kind, ignore_index=ignore_index, sample_weight=sample_weight)
        return self._count(batch)

    def _count(self, batch: Batch) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.tally.count(batch, self.n_bins).tensors()
        return found

    def _counted(self) -> Any:
        """Return the tally of all samples so far."""
        return self.tally(**{name: getattr(self, name) for name in self._defaults})

    def _reliability(self) -> Reliability:
        found: Reliability = self._counted().reliability()
        return found

    def compute(self) -> Tensor:
        return torch.tensor(getattr(self._counted(), self.measure), device=self.device)


class CalibrationError(_SumMetric):
    """ECE (``norm="l1"``), RMSCE (``"l2"``) or MCE (``"max"``) over bins (lo, hi] of the largest probability.

    The metric of torchmetrics has bins [lo, hi) and puts confidences of exactly 1 into a separate bin.
    """

    tally = Bins

    def __init__(
        self,
        num_classes: int | None = None,
        n_bins: int = BINS,
        norm: Literal["l1", "l2", "max"] = "l1",
        ignore_index: int | None = None,
        *,
        task: Task = "multiclass",
        from_logits: bool,
        **kwargs: Any,
    ) -> None:
        if norm not in NORMS:
            raise InputError(f"unknown norm {norm!r}{suggest(str(norm), NORMS)}")
        super().__init__(num_classes, n_bins, ignore_index, task=task, from_logits=from_logits, **kwargs)
        self.norm, self.measure = norm, NORMS[norm]


class ClasswiseCalibrationError(_SumMetric):
    """Classwise ECE, also SCE: the mean over classes of each class's calibration error."""

    tally = ClasswiseBins

    def _reliability(self) -> Reliability:
        """Return one diagram of the probabilities of all classes, with class frequencies instead of accuracy."""
        counted = self._counted()
        samples, probability, events = (part.sum(0) for part in (counted.samples, counted.probability, counted.events))
        return Bins(samples, probability, events, probability.new_zeros(())).reliability()


class _HistogramMetric(_SumMetric):
    """A metric based on sorted confidences, from a fine histogram: 3 MB for any number of samples."""

    table: Tensor

    def bound(self) -> float:
        """Return the maximum distance between the exact value and the result of `compute`."""
        return float(self._value_and_bound(self._counted().cells())[1])

    def compute(self) -> Tensor:
        if not bool(self.table[0].any()):
            return torch.tensor(float("nan"), device=self.device)
        return self._value_and_bound(self._counted().cells())[0][0].float()

    def _count(self, batch: Batch) -> dict[str, Tensor]:
        return {"table": Confidences.count(batch).histogram()}

    def _counted(self) -> Confidences:
        return Confidences.of_histogram(self.table)

    def _reliability(self) -> Reliability:
        return self._counted().reliability(self.n_bins)

    def _value_and_bound(self, cells: Cells) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class AdaptiveCalibrationError(_HistogramMetric):
    """Calibration error over bins of equal mass, with a proven error bound (`bound`)."""

    def _value_and_bound(self, cells: Cells) -> tuple[Tensor, Tensor]:
        return adaptive_ece(cells, self.n_bins)


class SmoothCalibrationError(_HistogramMetric):
    """SmoothECE (Błasiok & Nakkiran, ICLR 2024), equal to relplot's up to `bound`."""

    def _value_and_bound(self, cells: Cells) -> tuple[Tensor, Tensor]:
        return smooth_ece(cells)[::2]
