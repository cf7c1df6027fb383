"""Suite: all metrics of one set of predictions, from one pass, as sums that merge."""

from __future__ import annotations

from dataclasses import dataclass

from acls.metrics.batch import Batch
from acls.metrics.bins import BINS, Bins
from acls.metrics.proper import Proper
from acls.metrics.quantiles import Confidences, adaptive_ece, ks_error
from acls.metrics.ranking import aurc, auroc
from acls.metrics.smooth import smooth_ece
from acls.metrics.tally import Tally


@dataclass(frozen=True, eq=False)
class Suite(Tally):
    """Everything about the top label: accuracy, proper scores, calibration errors of all kinds, ranking.

    >>> import torch
    >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    >>> suite = Suite.of(logits, target) + Suite.of(logits, target)
    >>> suite.summary()["accuracy"]
    0.5
    """

    bins: Bins
    confidences: Confidences
    proper: Proper | None
    n_classes: int | None

    @classmethod
    def count(cls, batch: Batch, bins: int = BINS) -> Suite:
        return cls(
            bins=Bins.count(batch, bins),
            confidences=Confidences.count(batch),
            proper=None if batch.n_classes is None else Proper.count(batch),
            n_classes=batch.n_classes,
        )

    @property
    def n(self) -> int:
        return self.bins.n

    def summary(self) -> dict[str, float]:
        """Every metric by name, as a fraction; names that end in ``_bound`` say how far off the one before can be."""
        result: dict[str, float] = {"n": self.n}
        bins = self.bins
        if self.proper is not None:
            result |= {"accuracy": self.proper.accuracy, "top5": self.proper.top5}
            result |= {"nll": self.proper.nll, "brier": self.proper.brier}
        else:
            result["accuracy"] = int(bins.right.sum()) / self.n
        for name in ("ece", "overconfidence", "underconfidence", "mce", "rmsce", "rmsce_debiased"):
            result[name] = getattr(bins, name)
        cells = self.confidences.cells()
        for name, (value, bound) in {
            "aece": adaptive_ece(cells, bins.bins),
            "ks": ks_error(cells),
            "smece": smooth_ece(cells)[::2],
            "auroc": auroc(cells),
            "aurc": aurc(cells),
        }.items():
            result[name], result[f"{name}_bound"] = float(value), float(bound)
        return result
