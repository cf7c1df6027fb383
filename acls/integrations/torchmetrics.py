"""Calibration metrics for torchmetrics: states are sums, so memory is constant and processes add up exactly.

They drop into Lightning, `torchmetrics.MetricCollection` and whatever takes a `torchmetrics.Metric`. Other than there,
nothing is guessed from the values: ``from_logits`` says what the predictions are. ``plot()`` draws a reliability
diagram.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from acls.errors import InputError, suggest
from acls.integrations import importing
from acls.metrics.batch import Batch
from acls.metrics.bins import BINS, Bins, Reliability
from acls.metrics.cells import Cells, adaptive_ece
from acls.metrics.classwise import ClasswiseBins
from acls.metrics.quantiles import Confidences
from acls.metrics.smooth import smooth_ece
from acls.shapes import IGNORE_INDEX

with importing("torchmetrics", extra="torchmetrics"):
    from torchmetrics import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Norm = Literal["l1", "l2", "max"]


class _SumMetric(Metric):
    """A metric whose states are sums over samples."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        num_classes: int,
        n_bins: int = BINS,
        ignore_index: int | None = None,
        *,
        from_logits: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_classes < 2:
            raise InputError(f"num_classes is {num_classes}, but at least 2 are called for")
        self.num_classes = num_classes
        self.n_bins = n_bins
        self.ignore_index = ignore_index
        self.from_logits = from_logits
        empty = self._batch(torch.empty(0, num_classes), torch.empty(0, dtype=torch.long))
        for name, total in self._sums(empty).items():
            self.add_state(name, torch.zeros_like(total), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch: predictions ``(N, K, *D)``, target ``(N, *D)``."""
        if preds.ndim < 2 or preds.shape[1] != self.num_classes:
            raise InputError(
                f"preds have shape {tuple(preds.shape)}, but num_classes={self.num_classes} calls for "
                f"(N, {self.num_classes}, ...): axis 1 holds the classes"
            )
        for name, total in self._sums(self._batch(preds, target)).items():
            setattr(self, name, getattr(self, name) + total)

    def plot(self, val: Any = None, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Draw the reliability diagram of what was counted; ``val`` is there for torchmetrics and not looked at."""
        from acls.report.figures.reliability import plot

        return plot(self._reliability(), ax)

    def _batch(self, preds: Tensor, target: Tensor) -> Batch:
        ignore_index = IGNORE_INDEX if self.ignore_index is None else self.ignore_index
        return Batch.of(preds, target, kind="logits" if self.from_logits else "probs", ignore_index=ignore_index)

    def _sums(self, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError

    def _reliability(self) -> Reliability:
        raise NotImplementedError


class CalibrationError(_SumMetric):
    """ECE (``norm="l1"``), RMSCE (``"l2"``) or MCE (``"max"``) over bins (lo, hi] of the largest probability.

    torchmetrics' own has bins [lo, hi) and puts confidences of exactly 1 into a bin of their own.
    """

    samples: Tensor
    confidence: Tensor
    right: Tensor
    squares: Tensor

    def __init__(
        self,
        num_classes: int,
        n_bins: int = BINS,
        norm: Norm = "l1",
        ignore_index: int | None = None,
        *,
        from_logits: bool,
        **kwargs: Any,
    ) -> None:
        if norm not in ("l1", "l2", "max"):
            raise InputError(f"norm is {norm!r}{suggest(str(norm), ('l1', 'l2', 'max'))}")
        super().__init__(num_classes, n_bins, ignore_index, from_logits=from_logits, **kwargs)
        self.norm = norm

    def compute(self) -> Tensor:
        bins = self._counted()
        return torch.tensor({"l1": bins.ece, "l2": bins.rmsce, "max": bins.mce}[self.norm], device=self.samples.device)

    def _sums(self, batch: Batch) -> dict[str, Tensor]:
        return Bins.count(batch, self.n_bins).tensors()

    def _reliability(self) -> Reliability:
        return self._counted().reliability()

    def _counted(self) -> Bins:
        return Bins(self.samples, self.confidence, self.right, self.squares)


class _HistogramMetric(_SumMetric):
    """A metric of the order of confidences, from a fine histogram of them: 3 MB, whatever the number of samples."""

    table: Tensor

    def bound(self) -> float:
        """How far the exact value can be from what `compute` returns."""
        return float(self._value_and_bound(Confidences.of_histogram(self.table).cells())[1])

    def compute(self) -> Tensor:
        if not bool(self.table[0].any()):
            return torch.tensor(float("nan"), device=self.table.device)
        value, _ = self._value_and_bound(Confidences.of_histogram(self.table).cells())
        return value[0].float()

    def _sums(self, batch: Batch) -> dict[str, Tensor]:
        return {"table": Confidences.count(batch).histogram()}

    def _reliability(self) -> Reliability:
        return Confidences.of_histogram(self.table).reliability(self.n_bins)

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


class ClasswiseCalibrationError(_SumMetric):
    """Classwise ECE, also SCE: the mean over classes of each class's calibration error."""

    samples: Tensor
    probability: Tensor
    events: Tensor

    def compute(self) -> Tensor:
        return torch.tensor(self._counted().ece, device=self.samples.device)

    def _counted(self) -> ClasswiseBins:
        nothing = torch.zeros_like(self.probability)  # what only intervals need
        return ClasswiseBins(self.samples, self.probability, nothing, self.events, nothing)

    def _sums(self, batch: Batch) -> dict[str, Tensor]:
        counted = ClasswiseBins.count(batch, self.n_bins)
        return {"samples": counted.samples, "probability": counted.probability, "events": counted.events}

    def _reliability(self) -> Reliability:
        """All classes' probabilities in one diagram, with the frequency of the class for accuracy."""
        counted = self._counted()
        samples, probability, events = (part.sum(0) for part in (counted.samples, counted.probability, counted.events))
        return Bins(samples, probability, events, probability.new_zeros(())).reliability()
