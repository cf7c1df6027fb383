"""Which class was taken for which: confusion matrix, mean IoU, accuracy a class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acls.metrics.batch import Batch
from acls.metrics.tally import Tally


@dataclass(frozen=True, eq=False)
class Confusion(Tally):
    """How often the true class (row) was predicted as each class (column); ``(K, K)``."""

    whole = True

    matrix: Tensor

    @classmethod
    def count(cls, batch: Batch) -> Confusion:
        n_classes = batch.scores.shape[1]
        index = batch.target * n_classes + batch.predicted
        return cls(torch.bincount(index, minlength=n_classes**2).view(n_classes, n_classes))

    def summary(self) -> dict[str, float]:
        return {"miou": self.miou(), "class_accuracy": self.class_accuracy}

    def iou(self) -> Tensor:
        """Intersection over union of each class; NaN for one that is neither in the truth nor predicted."""
        hits = self.matrix.diagonal().double()
        return hits / (self.matrix.sum(0) + self.matrix.sum(1) - hits)

    def miou(self, *, without: int | None = None) -> float:
        """Mean IoU over the classes that occur, ``without`` one of them where the background is to be left out."""
        iou = self.iou()
        if without is not None:
            iou = iou[torch.arange(iou.shape[0], device=iou.device) != without]
        return float(iou.nanmean())

    @property
    def class_accuracy(self) -> float:
        """The mean of the accuracies of the classes that occur in the truth."""
        return float((self.matrix.diagonal().double() / self.matrix.sum(1)).nanmean())
