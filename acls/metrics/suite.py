"""Suite: all metrics of one set of predictions, from one pass, as sums that can be merged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from acls.metrics.batch import Batch
from acls.metrics.bins import BINS, Bins
from acls.metrics.catalogue import CATALOGUE
from acls.metrics.classwise import TACE_THRESHOLD, ClassProbabilities, ClasswiseBins, Confusion
from acls.metrics.confidences import Confidences
from acls.metrics.proper import Proper
from acls.metrics.resampling import Redraws
from acls.metrics.tally import TALLIES, Several, Tally


@dataclass(frozen=True, eq=False)
class Suite(Tally):
    """Accuracy, proper scores, calibration errors of the top label, and ranking metrics; more on request.

    The metrics of the top label cost about as much as a softmax. Metrics of every class's probability cost more and are
    optional: ``classwise`` (classwise ECE and the parts of the Brier score), ``ace`` (ACE and TACE), ``confusion``
    (mean IoU), and ``redraw`` (data of all classes for calibration tests; ``first`` is the number of the batch's first
    sample).

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
    redraws: Redraws | None = None
    more: Several | None = None
    """Additional tallies that are named by metrics of the catalogue."""

    @classmethod
    def count(
        cls,
        batch: Batch,
        bins: int = BINS,
        *,
        classwise: bool = False,
        ace: bool = False,
        confusion: bool = False,
        redraw: bool = False,
        first: int = 0,
    ) -> Suite:
        named = {one.tally: TALLIES[one.tally] for one in CATALOGUE.values() if one.tally}
        more = {name: one.count(batch) for name, one in named.items() if batch.n_classes is not None or not one.whole}
        return cls(
            bins=Bins.count(batch, bins),
            confidences=Confidences.count(batch),
            proper=None if batch.n_classes is None else Proper.count(batch),
            classwise=ClasswiseBins.count(batch, bins) if classwise else None,
            ace=ClassProbabilities.count(batch) if ace else None,
            tace=ClassProbabilities.count(batch, TACE_THRESHOLD) if ace else None,
            confusion=Confusion.count(batch) if confusion else None,
            n_classes=batch.n_classes,
            redraws=Redraws.count(batch, first) if redraw else None,
            more=Several(more) if more else None,
        )

    def __repr__(self) -> str:
        found = self.bins.summary()
        return f"Suite(n={self.n}, accuracy={found['accuracy']:.4f}, ece={found['ece']:.4f})"

    @property
    def n(self) -> float:
        """The number of samples (an int), or the sum of their weights."""
        return self.bins.n

    @property
    def weighted(self) -> bool:
        return self.confidences.weighted

    def summary(self) -> dict[str, float]:
        """Return every metric by name, as a fraction. ``x_bound`` is the largest possible error of ``x``."""
        return dict(self._summary)

    @cached_property
    def _summary(self) -> dict[str, float]:
        result: dict[str, float] = {"n": self.n, **self.bins.summary(), **self.confidences.summary(self.bins.bins)}
        for part in (self.proper, self.classwise, self.confusion, self.more):
            result |= {} if part is None else part.summary()
        for pairs in (self.ace, self.tace):
            result |= {} if pairs is None else pairs.summary(self.bins.bins)
        if "brier_calibration" in result:
            result["brier_refinement"] = result["brier"] - result["brier_calibration"]
        return result
