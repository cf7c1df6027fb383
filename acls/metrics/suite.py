"""Suite: all metrics of one set of predictions, from one pass, as sums that merge."""

from __future__ import annotations

from dataclasses import dataclass

from acls.metrics.batch import Batch
from acls.metrics.bins import BINS, Bins
from acls.metrics.classwise import TACE_THRESHOLD, ClassProbabilities, ClasswiseBins
from acls.metrics.confusion import Confusion
from acls.metrics.proper import Proper
from acls.metrics.quantiles import Confidences, adaptive_ece, ks_error
from acls.metrics.ranking import aurc, auroc
from acls.metrics.smooth import smooth_ece
from acls.metrics.tally import Tally


@dataclass(frozen=True, eq=False)
class Suite(Tally):
    """Accuracy, proper scores, the calibration errors of the top label and its ranking; more when asked for.

    The top label costs about as much as a softmax. What looks at every class's probability costs more and is asked for:
    ``classwise`` (classwise ECE and the Brier score's split), ``ace`` (ACE and TACE), ``confusion`` (mean IoU).

    >>> import torch
    >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    >>> suite = Suite.of(logits, target) + Suite.of(logits, target, kind="logits")
    >>> suite.summary()["n"], suite.summary()["accuracy"]
    (4, 0.5)
    """

    bins: Bins
    confidences: Confidences
    proper: Proper | None
    classwise: ClasswiseBins | None
    ace: ClassProbabilities | None
    tace: ClassProbabilities | None
    confusion: Confusion | None
    n_classes: int | None

    @classmethod
    def count(
        cls, batch: Batch, bins: int = BINS, *, classwise: bool = False, ace: bool = False, confusion: bool = False
    ) -> Suite:
        return cls(
            bins=Bins.count(batch, bins),
            confidences=Confidences.count(batch),
            proper=None if batch.n_classes is None else Proper.count(batch),
            classwise=ClasswiseBins.count(batch, bins) if classwise else None,
            ace=ClassProbabilities.count(batch) if ace else None,
            tace=ClassProbabilities.count(batch, TACE_THRESHOLD) if ace else None,
            confusion=Confusion.count(batch) if confusion else None,
            n_classes=batch.n_classes,
        )

    @property
    def n(self) -> int:
        return self.bins.n

    def summary(self) -> dict[str, float]:
        """Every metric by name, as a fraction; ``x_bound`` says how far the exact value of ``x`` can be from ``x``."""
        result: dict[str, float] = {"n": self.n}
        bins = self.bins
        result["accuracy"] = int(bins.right.sum()) / self.n if self.n else float("nan")
        result["confidence"] = float(bins.confidence.sum()) / self.n if self.n else float("nan")
        if self.proper is not None:
            result |= {"top5": self.proper.top5, "nll": self.proper.nll, "brier": self.proper.brier}
        for name in ("ece", "overconfidence", "underconfidence", "mce", "rmsce", "rmsce_debiased", "top_brier"):
            result[name] = getattr(bins, name)
        if self.n:
            result |= self._by_rank()
        if self.classwise is not None and self.proper is not None:
            result["classwise_ece"] = self.classwise.ece
            result["brier_calibration"] = self.classwise.brier_calibration
            result["brier_refinement"] = self.proper.brier - self.classwise.brier_calibration
        for name, pairs in (("ace", self.ace), ("tace", self.tace)):
            if pairs is not None and self.n:
                result[name], result[f"{name}_bound"] = pairs.ace(bins.bins)
        if self.confusion is not None:
            result["miou"], result["class_accuracy"] = self.confusion.miou(), self.confusion.class_accuracy
        return result

    def _by_rank(self) -> dict[str, float]:
        """What depends on the order of confidences, each with its error bound."""
        cells = self.confidences.cells()
        smooth, _, smooth_bound = smooth_ece(cells)
        found = {
            "aece": adaptive_ece(cells, self.bins.bins),
            "ks": ks_error(cells),
            "smece": (smooth, smooth_bound),
            "auroc": auroc(cells),
            "aurc": aurc(cells),
        }
        result: dict[str, float] = {}
        for name, (value, bound) in found.items():
            result[name], result[f"{name}_bound"] = float(value), float(bound)
        return result
