"""The metrics, each written once: what it is, what it is called, how it is printed, which way is better, what it needs.

Tables, page, JSON, ranking, checkpoint selection and docs read this. A new metric is one tally that computes it and one
line here; the order of the lines is the order in which metrics are shown.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    """Its key in `Suite.summary`, in stores and in JSON."""
    label: str
    about: str
    """What it is, in one phrase."""
    level: int
    """1: in every table. 2: also in the page's table and the ranking. 3: also in `acls evaluate`. 4: in JSON only."""
    better: Literal["lower", "higher", ""] = "lower"
    """Empty for a number that is neither good nor bad."""
    kind: Literal["error", "share", "score"] = "error"
    """A calibration error, which noise alone makes positive; a share of hits, which is a count over n; any other."""
    unit: Literal["%", ""] = "%"
    """``%`` for a fraction that is printed as a percentage."""
    needs: Literal["", "scores", "classes", "maps"] = ""
    """What it is computed from beside the top label: the scores; every class's probability, which costs more and which
    `Suite` counts when asked to; whole label maps."""

    @property
    def title(self) -> str:
        """The label with its unit, as a column's heading."""
        return f"{self.label} {self.unit}".rstrip()

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be printed."""
        return 100.0 if self.unit else 1.0

    @property
    def decimals(self) -> int:
        return 2 if self.unit else 4

    @property
    def sign(self) -> int:
        """1 where lower is better, -1 where higher is: what to sort values by, the best first."""
        return -1 if self.better == "higher" else 1

    def show(self, value: float | None, *, sign: bool = False) -> str:
        """The value as it is printed, without the unit; nothing for None.

        >>> CATALOGUE["ece"].show(0.05321), CATALOGUE["nll"].show(-0.25, sign=True)
        ('5.32', '-0.2500')
        """
        return "" if value is None else f"{self.scale * value:{'+' if sign else ''}.{self.decimals}f}"

    def phrase(self, value: float) -> str:
        """The value with label and unit, for a line of text.

        >>> CATALOGUE["ece"].phrase(0.05321)
        'ECE 5.32 %'
        """
        return f"{self.label} {self.show(value)} {self.unit}".rstrip()


CATALOGUE: dict[str, Metric] = {
    one.name: one
    for one in (
        Metric("accuracy", "accuracy", "share of samples whose largest score is the true class", 1, "higher", "share"),
        Metric("miou", "mIoU", "mean over all classes of intersection over union, of whole label maps", 1, "higher",
               "score", needs="maps"),
        Metric("miou_foreground", "foreground mIoU", "the same without class 0, the background", 2, "higher", "score",
               needs="maps"),
        Metric("ece", "ECE", "mean over samples of the gap between confidence and accuracy of their bin, 15 bins of "
               "equal width", 1),
        Metric("ece_floor", "floor", "the ECE that a calibrated model with these confidences would show at this n", 4,
               "", "score"),
        Metric("aece", "adaptive ECE", "the same over bins that hold equally many samples", 1),
        Metric("classwise_ece", "classwise ECE", "the ECE of each class's probability, averaged over the classes", 2,
               needs="classes"),
        Metric("nll", "NLL", "minus the mean log-probability of the true class: a proper score, lowest for the true "
               "probabilities", 1, kind="score", unit="", needs="scores"),
        Metric("brier", "Brier", "squared distance from the one-hot label, summed over the classes, so twice "
               "scikit-learn's for two classes: a proper score", 2, kind="score", unit="", needs="scores"),
        Metric("smece", "SmoothECE", "the error of a kernel-smoothed curve: no bins", 3),
        Metric("ks", "KS", "the largest distance between the running sums of confidence and of hits, sorted by "
               "confidence: no bins", 3),
        Metric("mce", "MCE", "the largest gap of any bin, however few samples it holds: mostly noise", 3),
        Metric("rmsce", "RMSCE", "root of the mean squared gap", 3),
        Metric("overconfidence", "overconfidence", "the part of the ECE from bins whose confidence is too high", 4,
               kind="score"),
        Metric("underconfidence", "underconfidence", "the part of the ECE from bins whose confidence is too low", 4,
               kind="score"),
        Metric("confidence", "confidence", "mean of the largest probability", 4, "", "score"),
        Metric("top5", "top-5 accuracy", "share of samples whose true class is among the five of largest score", 4,
               "higher", "share", needs="scores"),
        Metric("auroc", "AUROC", "probability that a right prediction is more confident than a wrong one", 4, "higher",
               "score"),
        Metric("aurc", "AURC", "mean error rate over all shares of most confident samples", 4, kind="score"),
        Metric("rmsce_debiased", "debiased RMSCE", "RMSCE with the noise of each bin subtracted", 4, kind="score"),
        Metric("top_brier", "top-label Brier", "squared distance of confidence and hit", 4, kind="score", unit=""),
        Metric("brier_calibration", "Brier, calibration", "the part of the Brier score that recalibrating each bin "
               "would remove", 4, kind="score", unit="", needs="classes"),
        Metric("brier_refinement", "Brier, refinement", "the rest of the Brier score", 4, kind="score", unit="",
               needs="classes"),
        Metric("class_accuracy", "class accuracy", "mean of the accuracies of the classes", 4, "higher", "score",
               needs="classes"),
        Metric("ace", "ACE", "mean over classes of the error over bins of equal mass", 4, needs="classes"),
        Metric("tace", "TACE", "ACE without probabilities below a threshold", 4, needs="classes"),
        Metric("temperature", "temperature", "the T of temperature scaling: above 1 where the model is overconfident",
               4, "", "score", unit=""),
        Metric("ece_after_temperature", "ECE after temperature", "the ECE that temperature scaling leaves, on the "
               "samples that it was fitted on", 4, kind="score"),
    )
}  # fmt: skip
"""By name, in the order in which they are shown."""


def metric(name: str) -> Metric:
    """The metric of that name; one that is not in the catalogue is printed by its name with four decimals."""
    return CATALOGUE.get(name) or Metric(name, name, "", 4, "", "score", unit="")


def names(level: int = 4, *, among: Container[str] | None = None) -> list[str]:
    """The names of the metrics up to a level, in order; ``among`` keeps those that it contains.

    >>> names(1)
    ['accuracy', 'miou', 'ece', 'aece', 'nll']
    >>> names(2, among={"ece": 0.05, "n": 100})
    ['ece']
    """
    return [one.name for one in CATALOGUE.values() if one.level <= level and (among is None or one.name in among)]


def selectable(*, maps: bool) -> list[str]:
    """The metrics that can choose a checkpoint: one end is better, and training computes them after every epoch."""
    computed = {"", "scores", "maps"} if maps else {"", "scores"}
    return [one.name for one in CATALOGUE.values() if one.better and one.needs in computed]
