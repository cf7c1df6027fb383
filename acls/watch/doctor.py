"""What looks wrong with a file of predictions, in plain sentences with numbers.

One pass, in bounded memory. Nothing is corrected: the reader of a finding decides.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from acls.arrays import SUM_TOLERANCE
from acls.errors import InputError
from acls.hashing import STEP, mix64
from acls.predictions import Predictions
from acls.predictions.core import widened
from acls.shapes import IGNORE_INDEX
from acls.watch.drift import added

Level = Literal["serious", "note"]
_SENTENCES: dict[Level, dict[str, str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""By level and name."""
_NEARLY_ALL = 0.999
_CLOSE = 0.01


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong (serious), or that a careful reader would want to know (note)."""

    level: Level
    name: str
    sentence: str


def _finding(name: str, **values: Any) -> Finding:
    level: Level = "serious" if name in _SENTENCES["serious"] else "note"
    return Finding(level, name, _SENTENCES[level][name].format(**values))


@dataclass(frozen=True)
class Diagnosis:
    """What was examined, and what was found, the serious things first."""

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

    def __str__(self) -> str:
        classes = f" of {self.n_classes} classes" if self.n_classes else ""
        sure = f", mean confidence {self.confidence:.2%}" if self.confidence <= 1 else ""
        kind = "confidences" if self.kind == "triples" else self.kind
        return f"{self.n} rows, {kind}{classes}; accuracy {self.accuracy:.2%}{sure}"

    def as_json(self) -> dict[str, Any]:
        """What `acls doctor --json` prints of it, as plain values."""
        plain = {name: getattr(self, name) for name in ("n", "kind", "accuracy", "confidence")}
        findings = [{"level": finding.level, "sentence": finding.sentence} for finding in self.findings]
        return {**plain, "classes": self.n_classes, "findings": findings}

    def against(self, test: Diagnosis, name: str) -> Diagnosis:
        """The same with what looks wrong if this set is meant for calibrating and the other, ``name``, for testing."""
        shared = self.fingerprint.share_in(test.fingerprint)
        findings = list(self.findings)
        if shared > 0.99:
            whole = "the same predictions" if self.n == test.n else "wholly contained"
            findings.append(_finding("same-set", share=shared, other=name, whole=whole))
        elif shared > 0.001:
            findings.append(_finding("overlap", share=shared, other=name))
        elif self.n == test.n and self.fingerprint.same_labels(test.fingerprint):
            findings.append(_finding("same-labels", other=name))
        return replace(self, findings=findings)


def examine(batches: Iterable[Predictions], *, ignore_index: int = IGNORE_INDEX) -> Diagnosis:
    """Examine predictions, unchecked ones (``open_batches(..., check=False)``), in one pass."""
    seen = _Seen(ignore_index)
    findings: list[Finding] = []
    try:
        for batch in batches:
            seen.add(batch)
    except InputError as error:  # what the reader itself cannot make sense of
        findings.append(_finding("unreadable", error=error))
    if seen.n:
        findings += seen.findings()
    elif not findings:
        findings.append(_finding("empty"))
    findings.sort(key=lambda finding: finding.level != "serious")
    return Diagnosis(seen.n, seen.k, seen.kind, seen.accuracy, seen.confidence, findings, seen.fingerprint)


class Fingerprint:
    """Hashes of a sample of the rows, enough to find rows that two data sets share, in at most 16 MB.

    A row is in the sample if the leading bits of its hash are 0, so two files sample the same rows; when too many are,
    one more bit is asked for.
    """

    LIMIT = 1 << 20

    def __init__(self) -> None:
        self.bits = 0
        self.hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.sorted_labels = True
        self._labels = hashlib.sha256()
        self._last = -(1 << 62)

    def add(self, rows: Tensor, labels: Tensor, distinctive: Tensor) -> None:
        """Take in some rows; those that are not distinctive, as saturated ones are, tell nothing and are not hashed."""
        plain = labels.numpy()
        self._labels.update(plain.tobytes())
        if plain.size:
            self.sorted_labels &= bool((np.diff(plain) >= 0).all()) and int(plain[0]) >= self._last
            self._last = int(plain[-1])
        hashes = _hash_rows(rows[distinctive], labels[distinctive])
        self.hashes = np.concatenate([self.hashes, self._sampled(hashes)])
        while len(self.hashes) > self.LIMIT:
            self.bits += 1
            self.hashes = self._sampled(self.hashes)

    def duplicates(self) -> float:
        """The share of sampled rows that equal an earlier one."""
        return 1 - len(np.unique(self.hashes)) / len(self.hashes) if self.hashes.size else 0.0

    def share_in(self, other: Fingerprint) -> float:
        """The share of these rows that the other has too; 0 if nothing can be compared."""
        bits = max(self.bits, other.bits)
        mine, theirs = self._sampled(self.hashes, bits), other._sampled(other.hashes, bits)
        return float(np.isin(mine, theirs).mean()) if mine.size else 0.0

    def same_labels(self, other: Fingerprint) -> bool:
        """Whether the labels are the same, row for row; False for ascending ones, which often are by chance."""
        return not self.sorted_labels and self._labels.digest() == other._labels.digest()

    def _sampled(self, hashes: NDArray[np.uint64], bits: int | None = None) -> NDArray[np.uint64]:
        bits = self.bits if bits is None else bits
        return hashes[hashes >> np.uint64(64 - bits) == 0] if bits else hashes


def _hash_rows(rows: Tensor, labels: Tensor) -> NDArray[np.uint64]:
    """A 64-bit hash of each row with its label: a random linear form of their bits, mixed."""
    bits = torch.cat([labels[:, None], rows.float().contiguous().view(torch.int32).long()], 1)
    weights = mix64(torch.arange(1, bits.shape[1] + 1) * STEP) | 1
    hashes: NDArray[np.uint64] = mix64((bits * weights).sum(1)).numpy().view(np.uint64)
    return hashes


class _Seen:
    """Counts and sums over all rows seen so far."""

    def __init__(self, ignore_index: int) -> None:
        self.ignore_index = ignore_index
        self.kind, self.stated = "", True
        self.k: int | None = None
        self.n = self.ignored = self.usable = self.right = self.broken = 0
        self.first_broken = -1
        self.sure = 0.0
        self.counts: Counter[str] = Counter()
        """How many usable rows have each of the marks that `_marks` gives."""
        self.values, self.sums = _Range(), _Range()
        """Of the scores, and of each row's sum."""
        self.columns = _Range()
        """Of each class."""
        self.labels = self.predicted = torch.zeros(0, dtype=torch.int64)
        self.strangers: Counter[int] = Counter()
        """Labels outside 0..K-1, the ignored one apart, and how many rows have each."""
        self.off_by_one = {-1: 0, 1: 0}
        self.fingerprint = Fingerprint()

    @property
    def accuracy(self) -> float:
        return self.right / max(1, self.usable)

    @property
    def confidence(self) -> float:
        return self.sure / max(1, self.usable)

    def add(self, batch: Predictions) -> None:
        """Count one slice."""
        self.kind, self.k = batch.kind, batch.n_classes
        self.stated &= batch.stated
        kept = batch.labelled(self.ignore_index)
        self.ignored += len(batch) - len(kept)
        scores = kept.top()[0][:, None] if kept.scores is None else widened(kept.scores)
        fine = scores.amax(1).isfinite()
        if not bool(fine.all()):
            if self.first_broken < 0:
                self.first_broken = self.n + int((batch.labels != self.ignore_index).nonzero()[~fine][0])
            self.broken += int((~fine).sum())
            kept, scores = kept[fine], scores[fine]
        self.n += len(batch)
        self.usable += len(kept)
        if len(kept):
            self.counts.update({mark: int(rows.sum()) for mark, rows in _marks(kept, scores).items()})
            self.values.add(scores.masked_fill(scores.isinf(), 0.0).flatten())
            self.sums.add(scores.sum(1))
            self.columns.add(scores)
            self._add_labels(kept)

    def _add_labels(self, kept: Predictions) -> None:
        confidence, predicted = kept.top()
        self.sure += float(confidence.double().sum())
        self.right += int((predicted == kept.labels).sum())
        for shift in self.off_by_one:
            self.off_by_one[shift] += int((predicted == kept.labels + shift).sum())
        stranger = (kept.labels < 0) | (kept.labels >= (self.k or 1 << 20))
        for value, count in zip(*np.unique(kept.labels[stranger].numpy(), return_counts=True), strict=True):
            if int(value) in self.strangers or len(self.strangers) < 100:
                self.strangers[int(value)] += int(count)
        self.labels = added(self.labels, torch.bincount(kept.labels[~stranger], minlength=self.k or 0))
        self.predicted = added(self.predicted, torch.bincount(predicted.clamp(min=0), minlength=self.k or 0))
        if kept.scores is not None:
            # Saturated rows are equal without being the same sample, so they tell nothing.
            self.fingerprint.add(kept.scores, kept.labels, confidence < 1 - 1e-6)

    def share(self, mark: str) -> float:
        return self.counts[mark] / max(1, self.usable)

    def findings(self) -> list[Finding]:
        """What the counts say, worst first within each topic."""
        found: list[Finding] = []
        if self.broken:
            found.append(_finding("nan", rows=_rows(self.broken, self.n), first=self.first_broken))
        if self.ignored:
            found.append(_finding("ignored", rows=_rows(self.ignored, self.n), label=self.ignore_index))
        if self.usable:
            found += [*self._about_the_kind(), *self._about_constants(), *self._about_labels()]
            if not self.stated and all(finding.level == "note" for finding in found):
                found += self._about_agreement()
            repeated = self.fingerprint.duplicates()
            if repeated > 0.01 and not {"rounded", "constant"} & {finding.name for finding in found}:
                found.append(_finding("duplicates", share=repeated))
        return found

    def _about_the_kind(self) -> Iterator[Finding]:
        about = {
            "logits": self._about_logits,
            "probs": self._about_probs,
            "log_probs": self._about_log_probs,
            "triples": self._about_confidence,
        }
        found = list(about[self.kind]())[:1]  # the first is the reason of the others
        yield from found
        if self.k is None or any(finding.level == "serious" for finding in found):
            return
        if self.share("softmax-of-distribution") > _NEARLY_ALL and self.accuracy >= self.confidence + 0.05:
            most = np.e / (np.e + self.k - 1)
            yield _finding("double-softmax", most=most, k=self.k, accuracy=self.accuracy)

    def _about_confidence(self) -> Iterator[Finding]:
        low, high = self.values.low, self.values.high
        if low < 0 or high > 1:
            what = "percent: divide it by 100" if low >= 0 and 1 < high <= 100 else "no probability"
            yield _finding("confidence", low=low, high=high, what=what)

    def _about_logits(self) -> Iterator[Finding]:
        if self.share("distribution") > _NEARLY_ALL:
            yield _finding("probs-as-logits")
        if self.k == 2 and self.share("zero-and-fraction") > _NEARLY_ALL and self.values.high > 0.6:
            yield _finding("prob-as-logit")
        if self.share("log-distribution") > _NEARLY_ALL:
            yield _finding("log-probs-as-logits")

    def _about_probs(self) -> Iterator[Finding]:
        wrong, sums, values = 1 - self.share("adds-up"), self.sums, self.values
        if self.share("within-unit") < _NEARLY_ALL:
            percent = values.low >= 0 and abs(sums.mean - 100) < 1
            logs = self.share("log-distribution") > _NEARLY_ALL
            name = "log-probs-as-probs" if logs else "percent" if percent else "logits-as-probs"
            yield _finding(name, low=values.low, high=values.high)
        if wrong > 1 - _NEARLY_ALL and bool(((self.columns.total - 1).abs() < 0.05).all()):
            yield _finding("class-axis", mean=sums.mean)
        if wrong > 0:
            rows = _rows(round(wrong * self.usable), self.usable)
            yield _finding("sums", rows=rows, low=sums.low, high=sums.high, mean=sums.mean)
        if max(1 - sums.low, sums.high - 1) > 0.002:
            yield _finding("rounded", low=sums.low, high=sums.high)
        if self.counts["true-class-zero"]:
            yield _finding("zero", rows=_rows(self.counts["true-class-zero"], self.usable))

    def _about_log_probs(self) -> Iterator[Finding]:
        if self.share("distribution") > _NEARLY_ALL:
            yield _finding("probs-as-log-probs")
        elif self.share("log-distribution") <= _NEARLY_ALL:
            rows = _rows(self.usable - self.counts["log-distribution"], self.usable)
            yield _finding("logits-as-log-probs", rows=rows)

    def _about_constants(self) -> Iterator[Finding]:
        if self.k is None or self.usable == 1:
            return
        constant = (self.columns.low == self.columns.high).nonzero().flatten().tolist()
        if len(constant) == self.k:
            yield _finding("constant")
        elif constant and self.k > 2:  # of two classes the reader may have made one up, from a file with one column
            yield _finding("constant-class", classes=_classes(constant, self.k))

    def _about_labels(self) -> Iterator[Finding]:
        present = int((self.labels > 0).sum())
        if self.strangers:
            yield self._about_strangers()
        elif present == 1 and self.usable > 1 and self.stated:
            yield _finding("one-answer", answer="right" if self.right else "wrong")
        elif present == 1 and self.usable > 1:
            yield _finding("one-label", label=int(self.labels.argmax()))
        elif self.k is not None and present < self.k and self.usable >= 20 * self.k:
            missing = (self.labels == 0).nonzero().flatten().tolist()
            yield _finding("missing-class", classes=_classes(missing, self.k))

    def _about_strangers(self) -> Finding:
        rows, top = _rows(self.strangers.total(), self.usable), (self.k or 0) - 1
        if set(self.strangers) == {top + 1} and self.labels.numel() and int(self.labels[0]) == 0:
            return _finding("labels-from-1", k=top + 1)
        if len(self.strangers) == 1:
            return _finding("ignore-label", rows=rows, top=top, label=next(iter(self.strangers)))
        some = ", ".join(map(str, sorted(self.strangers)[:5])) + (", ..." if len(self.strangers) > 5 else "")
        return _finding("labels", rows=rows, top=top, some=some)

    def _about_agreement(self) -> Iterator[Finding]:
        """Labels and predictions that are each fine but do not belong together."""
        accuracy, confidence = self.accuracy, self.confidence
        labels, predicted = pad_sequence([self.labels.double(), self.predicted.double()], batch_first=True)
        chance = float((labels / labels.sum()) @ (predicted / predicted.sum()))
        noise = 3 * (chance * (1 - chance) / self.usable) ** 0.5 + 0.01
        never = ((predicted == 0) & (labels > 0)).nonzero().flatten().tolist()
        shift, count = max(self.off_by_one.items(), key=itemgetter(1))
        if count / self.usable > accuracy + 0.3 and self.k != 2:
            yield _finding("shifted-labels", shift=shift, share=count / self.usable, accuracy=accuracy)
        elif int((predicted > 0).sum()) == 1 and self.usable >= 20:
            yield _finding("one-prediction", label=int(predicted.argmax()))
        elif self.usable >= 100 and accuracy < chance + noise and confidence > chance + 0.3:
            yield _finding("shuffled-labels", accuracy=accuracy, chance=chance, confidence=confidence)
        elif self.k is not None and self.usable >= 20 * self.k and never:
            yield _finding("never-predicted", classes=_classes(never, self.k))


class _Range:
    """Least, greatest and sum of all values added, over axis 0."""

    low = high = total = torch.zeros(())
    count = 0

    def add(self, values: Tensor) -> None:
        low, high, total = values.amin(0), values.amax(0), values.double().sum(0)
        if self.count:
            low, high, total = self.low.minimum(low), self.high.maximum(high), self.total + total
        self.low, self.high, self.total = low, high, total
        self.count += len(values)

    @property
    def mean(self) -> float:
        return float(self.total) / max(1, self.count)


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


def _rows(count: int, n: int) -> str:
    return f"{count} of {n} rows ({count / n:.2%})"


def _classes(some: list[int], k: int) -> str:
    shown = ", ".join(map(str, some[:8])) + (", ..." if len(some) > 8 else "")
    return f"class {shown} has" if len(some) == 1 else f"{len(some)} of {k} classes ({shown}) have"
