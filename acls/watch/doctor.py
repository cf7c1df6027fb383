"""What looks wrong with a file of predictions, in plain sentences with numbers.

One pass, in bounded memory. Nothing is corrected: the reader of a finding decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from acls.arrays import SUM_TOLERANCE
from acls.errors import InputError
from acls.predictions import Predictions
from acls.predictions.core import widened
from acls.shapes import IGNORE_INDEX
from acls.watch.fingerprint import Fingerprint

Level = Literal["serious", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong (serious), or that a careful reader would want to know (note)."""

    level: Level
    name: str
    sentence: str


@dataclass(frozen=True)
class Diagnosis:
    """What was looked at, and what was found, the serious things first."""

    n: int
    n_classes: int | None
    kind: str
    accuracy: float
    confidence: float
    findings: list[Finding]
    fingerprint: Fingerprint

    @property
    def healthy(self) -> bool:
        """Whether nothing serious was found."""
        return all(finding.level != "serious" for finding in self.findings)


def examine(batches: Iterable[Predictions], *, ignore_index: int = IGNORE_INDEX) -> Diagnosis:
    """Look through predictions, unchecked ones (``open_batches(..., check=False)``), once."""
    seen = _Seen(ignore_index)
    broken: list[Finding] = []
    try:
        for batch in batches:
            seen.look(batch)
    except InputError as error:  # what the reader itself cannot make sense of
        broken.append(Finding("serious", "unreadable", str(error)))
    if seen.n == 0 and not broken:
        broken.append(Finding("serious", "empty", "there are no rows"))
    findings = broken + (seen.findings() if seen.n else [])
    findings.sort(key=lambda finding: finding.level != "serious")
    usable = max(seen.usable, 1)
    return Diagnosis(
        n=seen.n,
        n_classes=seen.k,
        kind=seen.kind,
        accuracy=seen.right / usable,
        confidence=seen.confidence / usable,
        findings=findings,
        fingerprint=seen.fingerprint,
    )


def compare(one: Diagnosis, other: Diagnosis, name: str) -> list[Finding]:
    """What looks wrong when one set is meant for calibrating and the other for testing."""
    shared = one.fingerprint.share_in(other.fingerprint)
    same_rows = one.n == other.n
    if shared > 0.99:
        whole = "the same predictions" if same_rows else "wholly contained"
        text = f"{shared:.2%} of the rows are also in {name} ({whole}): what is fitted on them must not be tested there"
        return [Finding("serious", "same-set", text)]
    if shared > 0.001:
        text = f"{shared:.2%} of the rows are also in {name}: take them out of one of the two"
        return [Finding("serious", "overlap", text)]
    if same_rows and one.fingerprint.labels == other.fingerprint.labels and not one.fingerprint.sorted_labels:
        text = (
            f"the labels are those of {name}, row for row, with other scores: "
            "the same samples through another model, or the same set twice"
        )
        return [Finding("note", "same-labels", text)]
    return []


_NEARLY_ALL = 0.999
_CLOSE = 0.01


class _Seen:
    """Counts and sums over all rows looked at so far."""

    def __init__(self, ignore_index: int) -> None:
        self.ignore_index = ignore_index
        self.kind = ""
        self.k: int | None = None
        self.n = self.ignored = self.usable = self.right = self.broken = 0
        self.first_broken = -1
        self.confidence = 0.0
        self.shares: dict[str, int] = {}
        """How many usable rows have each of the marks that `_marks` gives."""
        self.sums = _Range()
        self.values = _Range()
        self.column_sums = torch.zeros(0, dtype=torch.float64)
        self.column_ranges = torch.zeros(2, 0, dtype=torch.float64)
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.predicted = torch.zeros(0, dtype=torch.int64)
        self.strangers: dict[int, int] = {}
        """Labels outside 0..K-1, the ignored one apart, and how many rows have each."""
        self.off_by_one = {-1: 0, 1: 0}
        self.fingerprint = Fingerprint()

    def look(self, batch: Predictions) -> None:
        """Take in one slice."""
        self.kind, self.k = batch.kind, batch.n_classes
        kept = batch.labelled(self.ignore_index)
        self.ignored += len(batch) - len(kept)
        scores = kept.top()[0][:, None] if kept.scores is None else widened(kept.scores)
        fine = scores.amax(1).isfinite()
        if not bool(fine.all()):
            if self.first_broken < 0:
                position = torch.arange(len(batch))[batch.labels != self.ignore_index][~fine][0]
                self.first_broken = self.n + int(position)
            self.broken += int((~fine).sum())
            kept, scores = kept[fine], scores[fine]
        self.n += len(batch)
        if len(kept) == 0:
            return
        self.usable += len(kept)
        self._look_at_scores(kept, scores)
        self._look_at_labels(kept)

    def _look_at_scores(self, kept: Predictions, scores: Tensor) -> None:
        for mark, rows in _marks(kept, scores).items():
            self.shares[mark] = self.shares.get(mark, 0) + int(rows.sum())
        self.values.add(scores.masked_fill(scores.isinf(), 0.0))
        if kept.scores is None:
            return
        self.sums.add(scores.sum(1))
        columns = torch.stack([scores.amin(0), scores.amax(0)]).double()
        if not self.column_sums.numel():
            self.column_sums, self.column_ranges = scores.double().sum(0), columns
        else:
            self.column_sums = self.column_sums + scores.double().sum(0)
            self.column_ranges = torch.stack(
                [self.column_ranges[0].minimum(columns[0]), self.column_ranges[1].maximum(columns[1])]
            )

    def _look_at_labels(self, kept: Predictions) -> None:
        confidence, predicted = kept.top()
        self.confidence += float(confidence.double().sum())
        self.right += int((predicted == kept.labels).sum())
        for shift in self.off_by_one:
            self.off_by_one[shift] += int((predicted == kept.labels + shift).sum())
        stranger = (kept.labels < 0) | (kept.labels >= (self.k or 1 << 20))
        for value, count in zip(*np.unique(kept.labels[stranger].numpy(), return_counts=True), strict=True):
            if int(value) in self.strangers or len(self.strangers) < 100:
                self.strangers[int(value)] = self.strangers.get(int(value), 0) + int(count)
        self.labels = _added(self.labels, torch.bincount(kept.labels[~stranger], minlength=self.k or 0))
        self.predicted = _added(self.predicted, torch.bincount(predicted.clamp(min=0), minlength=self.k or 0))
        if kept.scores is not None:
            # Saturated rows are equal without being the same sample, so they tell nothing.
            self.fingerprint.add(kept.scores, kept.labels, confidence < 1 - 1e-6)

    def share(self, mark: str) -> float:
        return self.shares.get(mark, 0) / max(1, self.usable)

    def findings(self) -> list[Finding]:
        """What the counts say, worst first within each topic."""
        found: list[Finding] = []
        if self.broken:
            text = f"{_rows(self.broken, self.n)} hold NaN or infinity, the first is row {self.first_broken}"
            found.append(Finding("serious", "nan", text))
        if self.ignored:
            text = f"{_rows(self.ignored, self.n)} carry the ignored label {self.ignore_index} and are left out"
            found.append(Finding("note", "ignored", text))
        if self.usable:
            found += self._about_the_kind() + self._about_constants() + self._about_labels()
            if all(finding.level == "note" for finding in found):
                found += self._about_agreement()
            if not {"rounded", "constant"} & {finding.name for finding in found}:
                found += self._about_duplicates()
        return found

    def _about_the_kind(self) -> list[Finding]:
        if self.kind == "triples":
            return self._about_confidence()
        about = {"logits": self._about_logits, "probs": self._about_probs, "log_probs": self._about_log_probs}
        found = about[self.kind]()
        if not found or found[0].level == "note":
            found += self._about_second_softmax()
        return found

    def _about_confidence(self) -> list[Finding]:
        if self.values.low >= 0 and self.values.high <= 1:
            return []
        what = "percent: divide it by 100" if 1 < self.values.high <= 100 and self.values.low >= 0 else "no probability"
        text = (
            f"confidence runs from {self.values.low:g} to {self.values.high:g}, not within 0..1: it looks like {what}"
        )
        return [Finding("serious", "confidence", text)]

    def _about_logits(self) -> list[Finding]:
        if self.share("distribution") > _NEARLY_ALL:
            text = (
                "the logits are probabilities: every value is within 0..1 and the rows add up to 1. "
                "Softmax would be applied a second time; name them as probs"
            )
            return [Finding("serious", "probs-as-logits", text)]
        if self.k == 2 and self.share("zero-and-fraction") > _NEARLY_ALL and self.values.high > 0.6:
            text = (
                "the one column of logits lies within 0..1: it looks like the probability of class 1; name it as probs"
            )
            return [Finding("serious", "probs-as-logits", text)]
        if self.share("log-distribution") > _NEARLY_ALL:
            text = (
                "the logits are log-probabilities already. That is harmless: softmax gives back the same probabilities"
            )
            return [Finding("note", "log-probs-as-logits", text)]
        return []

    def _about_probs(self) -> list[Finding]:
        wrong = 1 - self.share("adds-up")
        if self.share("within-unit") < _NEARLY_ALL:
            if self.share("log-distribution") > _NEARLY_ALL:
                kind, name = "log-probabilities: name them as log_probs", "log-probs-as-probs"
            elif self.values.low >= 0 and abs(self.sums.mean - 100) < 1:
                kind, name = "percent: divide them by 100", "percent"
            else:
                kind, name = "logits: name them as logits", "logits-as-probs"
            text = (
                f"the probs run from {self.values.low:g} to {self.values.high:g}, outside 0..1: they look like {kind}"
            )
            return [Finding("serious", name, text)]
        if wrong > 1 - _NEARLY_ALL and bool(((self.column_sums - 1).abs() < 0.05).all()):
            text = (
                f"each class adds up to 1 over the samples, and the rows to {self.sums.mean:.4g}: "
                "softmax was taken over the wrong axis, or the classes lie on axis 0"
            )
            return [Finding("serious", "class-axis", text)]
        if wrong > 0:
            text = (
                f"{_rows(round(wrong * self.usable), self.usable)} of probs do not add up to 1 but to "
                f"{self.sums.low:.4g} .. {self.sums.high:.4g} (mean {self.sums.mean:.4g}): "
                "one sigmoid a class, or classes left out? Divide each row by its sum if they exclude each other"
            )
            return [Finding("serious", "sums", text)]
        if max(1 - self.sums.low, self.sums.high - 1) > 0.002:
            text = f"the rows of probs add up to {self.sums.low:.4f} .. {self.sums.high:.4f}: rounded values"
            return [Finding("note", "rounded", text)]
        if self.shares.get("true-class-zero"):
            count = _rows(self.shares["true-class-zero"], self.usable)
            return [Finding("note", "zero", f"{count} give the true class the probability 0: the NLL is infinite")]
        return []

    def _about_log_probs(self) -> list[Finding]:
        if self.share("log-distribution") > _NEARLY_ALL:
            return []
        if self.share("distribution") > _NEARLY_ALL:
            return [Finding("serious", "probs-as-log-probs", "the log_probs are probabilities: name them as probs")]
        text = (
            f"the log_probs are not normalised at {_rows(self.usable - self.shares['log-distribution'], self.usable)}: "
            "they look like logits; name them so"
        )
        return [Finding("serious", "logits-as-log-probs", text)]

    def _about_second_softmax(self) -> list[Finding]:
        accuracy, confidence = self.right / self.usable, self.confidence / self.usable
        if self.share("softmax-of-distribution") <= _NEARLY_ALL or accuracy < confidence + 0.05:
            return []
        assert self.k is not None
        most = np.e / (np.e + self.k - 1)
        text = (
            f"softmax was applied twice: no confidence exceeds {most:.4f}, the most that softmax can make of "
            f"{self.k} probabilities, at an accuracy of {accuracy:.2%}. Save the scores before the last softmax"
        )
        return [Finding("serious", "double-softmax", text)]

    def _about_labels(self) -> list[Finding]:
        found = []
        if self.strangers:
            assert self.k is not None or min(self.strangers) < 0
            found.append(self._about_strangers())
        present = int((self.labels > 0).sum())
        if present == 1 and self.usable > 1 and not self.strangers:
            text = f"every label is {int(self.labels.argmax())}"
            found.append(Finding("serious", "one-label", text))
        elif self.k is not None and present < self.k and self.usable >= 20 * self.k and not self.strangers:
            missing = (self.labels == 0).nonzero().flatten().tolist()
            text = f"{_classes(missing, self.k)} no sample: classwise numbers say nothing about them"
            found.append(Finding("note", "missing-class", text))
        return found

    def _about_strangers(self) -> Finding:
        total, top = sum(self.strangers.values()), (self.k or 0) - 1
        rows = _rows(total, self.usable)
        if set(self.strangers) == {top + 1} and self.labels.numel() and int(self.labels[0]) == 0:
            text = f"labels run from 1 to {top + 1}: they count from 1, the classes from 0; subtract 1"
            return Finding("serious", "labels-from-1", text)
        if len(self.strangers) == 1:
            (value,) = self.strangers
            text = (
                f"{rows} have the label {value}, outside 0..{top}: if it marks what does not count, "
                f"leave it out with --ignore-index {value}"
            )
            return Finding("serious", "ignore-label", text)
        some = ", ".join(map(str, sorted(self.strangers)[:5])) + (", ..." if len(self.strangers) > 5 else "")
        text = f"{rows} have labels outside 0..{top} ({some}): labels of another data set, or classes left out"
        return Finding("serious", "labels", text)

    def _about_agreement(self) -> list[Finding]:
        """Labels and predictions that are each fine but do not belong together."""
        accuracy, confidence = self.right / self.usable, self.confidence / self.usable
        for shift, count in self.off_by_one.items():
            if count / self.usable > accuracy + 0.3 and self.k != 2:
                text = (
                    f"the predicted class is the label {shift:+d} in {count / self.usable:.2%} of the rows, "
                    f"and the label itself in {accuracy:.2%}: one of the two counts from another number"
                )
                return [Finding("serious", "shifted-labels", text)]
        width = max(len(self.labels), len(self.predicted))
        labels, predicted = (torch.zeros(width).double() + _padded(x, width) for x in (self.labels, self.predicted))
        if int((predicted > 0).sum()) == 1 and self.usable >= 20:
            text = f"class {int(predicted.argmax())} is predicted at every row"
            return [Finding("serious", "one-prediction", text)]
        chance = float((labels / labels.sum()) @ (predicted / predicted.sum()))
        noise = 3 * (chance * (1 - chance) / self.usable) ** 0.5 + 0.01
        if self.usable >= 100 and accuracy < chance + noise and confidence > chance + 0.3:
            text = (
                f"the accuracy is {accuracy:.2%}, what chance gives ({chance:.2%}), at a mean confidence of "
                f"{confidence:.2%}: the labels are in another order or of other classes than the scores"
            )
            return [Finding("serious", "shuffled-labels", text)]
        if self.k is not None and self.usable >= 20 * self.k:
            never = ((predicted == 0) & (labels > 0)).nonzero().flatten().tolist()
            if never:
                return [Finding("note", "never-predicted", f"{_classes(never, self.k)} samples but no prediction")]
        return []

    def _about_constants(self) -> list[Finding]:
        if self.k is None or self.usable == 1:
            return []
        constant = (self.column_ranges[0] == self.column_ranges[1]).nonzero().flatten().tolist()
        if len(constant) == self.k:
            return [Finding("serious", "constant", "all rows are the same")]
        if constant and self.k > 2:  # of two classes the reader may have made one up, from a file with one column
            text = f"{_classes(constant, self.k)} the same score in every row"
            return [Finding("serious", "constant-class", text)]
        return []

    def _about_duplicates(self) -> list[Finding]:
        repeated = self.fingerprint.duplicates()
        if repeated <= 0.01:
            return []
        text = f"{repeated:.2%} of the rows repeat an earlier one with its label: samples counted twice, or rounding"
        return [Finding("note", "duplicates", text)]


class _Range:
    """Least, greatest and mean of all values added."""

    def __init__(self) -> None:
        self.low, self.high, self._sum, self._count = float("inf"), float("-inf"), 0.0, 0

    def add(self, values: Tensor) -> None:
        low, high = values.aminmax()
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        self._sum += float(values.double().sum())
        self._count += values.numel()

    @property
    def mean(self) -> float:
        return self._sum / max(1, self._count)


def _marks(p: Predictions, scores: Tensor) -> dict[str, Tensor]:
    """Which rows look like what."""
    if p.scores is None:
        return {}
    low, high, total = scores.amin(1), scores.amax(1), scores.sum(1)
    within = (low >= -1e-6) & (high <= 1 + 1e-3)
    adds_up = (total - 1).abs() <= SUM_TOLERANCE
    marks = {
        "within-unit": within,
        "adds-up": adds_up,
        "distribution": within & adds_up,
        "log-distribution": (high <= 1e-3) & (scores.logsumexp(1).abs() <= SUM_TOLERANCE),
        "zero-and-fraction": (scores[:, 0] == 0) & within,
    }
    if p.kind == "probs":
        known = p.labels.clamp(0, scores.shape[1] - 1)
        marks["true-class-zero"] = scores.gather(1, known[:, None])[:, 0] == 0
        scores = scores.clamp(min=0).log()
    # If these are softmax(q) of a distribution q, then q is the log-probabilities shifted so that they add up to 1.
    inner = scores + (1 - scores.sum(1, keepdim=True)) / scores.shape[1]
    marks["softmax-of-distribution"] = (inner.amin(1) > -_CLOSE) & (inner.amax(1) < 1 + _CLOSE)
    return marks


def _added(total: Tensor, counts: Tensor) -> Tensor:
    width = max(len(total), len(counts))
    return _padded(total, width) + _padded(counts, width)


def _padded(counts: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(counts, (0, width - len(counts)))


def _rows(count: int, n: int) -> str:
    return f"{count} of {n} rows ({count / n:.2%})"


def _classes(some: list[int], k: int) -> str:
    shown = ", ".join(map(str, some[:8])) + (", ..." if len(some) > 8 else "")
    return f"class {shown} has" if len(some) == 1 else f"{len(some)} of {k} classes ({shown}) have"
