"""Find what looks wrong with a file of predictions, and say it in plain sentences with numbers.

The file is read once, in bounded memory. Nothing is corrected: the user decides what to do.
"""

from __future__ import annotations

import copy
import hashlib
import json
import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from acls.arrays import SUM_TOLERANCE, widened
from acls.errors import InputError
from acls.hashing import codes
from acls.metrics.catalogue import in_percent
from acls.predictions import Batches, Columns, Predictions, Source, slices
from acls.shapes import IGNORE_INDEX
from acls.shown import Shown
from acls.watch.drift import added

Level = Literal["serious", "note"]
_SENTENCES: dict[Level, dict[str, str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""By level and name."""
_NEARLY_ALL = 0.999
_CLOSE = 0.01


class _Sentences(string.Formatter):
    """Formats ``{fraction:%}`` as `in_percent` does."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return in_percent(value) if format_spec == "%" else str(super().format_field(value, format_spec))


@dataclass(frozen=True)
class Finding:
    """A problem (serious), or something that a careful reader would want to know (note)."""

    level: Level
    name: str
    sentence: str


def _finding(name: str, **values: Any) -> Finding:
    level: Level = "serious" if name in _SENTENCES["serious"] else "note"
    return Finding(level, name, _Sentences().format(_SENTENCES[level][name], **values))


def _first(wrong: Mapping[str, object], **values: Any) -> list[Finding]:
    """Return the finding of the first true condition, if there is one: it explains the others."""
    return [_finding(name, **values) for name, true in wrong.items() if true][:1]


def examine(
    source: Source, columns: Columns | None = None, *, against: Source | None = None, ignore_index: int = IGNORE_INDEX
) -> Diagnosis:
    """Examine a file, predictions in memory, or unchecked slices (``open_batches(..., check=False)``), in one pass.

    With ``against``, the test set of the model, it also reports whether this set, used for calibration, overlaps it.
    """
    batches = slices(source, columns, ignore_index=ignore_index, check=False)
    seen = Diagnosis(ignore_index, batches.name if isinstance(batches, Batches) else "predictions")
    try:
        for batch in batches:
            seen.add(batch)
    except InputError as error:  # the reader cannot parse the file
        seen.error = error
    seen.conclude()
    return seen if against is None else seen.against(examine(against, columns, ignore_index=ignore_index))


class Fingerprint:
    """Hashes of a sample of the rows, used to find rows that two data sets share, in at most 16 MB.

    A row is in the sample if the leading bits of its hash are 0, so the samples of two files contain the same rows. If
    the sample is too large, one more bit is required.
    """

    LIMIT = 1 << 20

    def __init__(self) -> None:
        self.bits = 0
        self.hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.sorted_labels = True
        self._labels = hashlib.sha256()
        self._last = -(1 << 62)

    def add(self, rows: Tensor, labels: Tensor, distinctive: Tensor) -> None:
        """Add rows; rows that are not distinctive, such as saturated ones, carry no information and are not hashed."""
        plain = labels.numpy()
        self._labels.update(plain.tobytes())
        if plain.size:
            self.sorted_labels &= bool((np.diff(plain) >= 0).all()) and int(plain[0]) >= self._last
            self._last = int(plain[-1])
        hashes = codes(rows[distinctive].float(), labels[distinctive]).numpy().view(np.uint64)
        self.hashes = np.concatenate([self.hashes, _sampled(hashes, self.bits)])
        while len(self.hashes) > self.LIMIT:
            self.bits += 1
            self.hashes = _sampled(self.hashes, self.bits)

    def duplicates(self) -> float:
        """Return the share of sampled rows that equal an earlier row."""
        return 1 - len(np.unique(self.hashes)) / len(self.hashes) if self.hashes.size else 0.0

    def share_in(self, other: Fingerprint) -> float:
        """Return the share of these rows that the other set also has; 0 if nothing can be compared."""
        bits = max(self.bits, other.bits)
        mine, theirs = (_sampled(one.hashes, bits) for one in (self, other))
        return float(np.isin(mine, theirs).mean()) if mine.size else 0.0

    def same_labels(self, other: Fingerprint) -> bool:
        """Return whether all labels are equal, row by row; False for ascending labels, often equal by chance."""
        return not self.sorted_labels and self._labels.digest() == other._labels.digest()


def _sampled(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return hashes[hashes >> np.uint64(64 - bits) == 0] if bits else hashes


class Diagnosis(Shown):
    """The name of the data, counts and sums over all rows, and the findings, serious ones first."""

    def __init__(self, ignore_index: int, name: str) -> None:
        self.ignore_index, self.name = ignore_index, name
        self.kind, self.stated = "", True
        self.n_classes: int | None = None
        self.n = self.ignored = self.usable = self.right = self.broken = 0
        self.first_broken = -1
        self.sure = 0.0
        self.counts: Counter[str] = Counter()
        """The number of usable rows with each mark of `_marks`."""
        self.values, self.sums = _Range(), _Range()
        """The ranges of the scores and of the row sums."""
        self.columns = _Range()
        """The range of each class."""
        self.labels = self.predicted = torch.zeros(0, dtype=torch.int64)
        self.strangers: Counter[int] = Counter()
        """Labels outside 0..K-1, except the ignored label, with their number of rows."""
        self.off_by_one = {-1: 0, 1: 0}
        self.fingerprint = Fingerprint()
        self.findings: list[Finding] = []
        self.error: InputError | None = None
        """The reason why the rest could not be read."""

    @property
    def healthy(self) -> bool:
        """Whether nothing serious was found."""
        return all(finding.level != "serious" for finding in self.findings)

    def __str__(self) -> str:
        classes = f" of {self.n_classes} classes" if self.n_classes else ""
        sure = f", mean confidence {in_percent(self.confidence)}" if self.confidence <= 1 else ""
        kind = "confidences" if self.kind == "triples" else self.kind
        return f"{self.n} rows, {kind}{classes}; accuracy {in_percent(self.accuracy)}{sure}"

    def as_json(self) -> dict[str, Any]:
        """Return the object that `acls doctor --json` prints, as plain values."""
        plain = {"file": self.name} | {name: getattr(self, name) for name in ("n", "kind", "accuracy", "confidence")}
        findings = [{"level": finding.level, "sentence": finding.sentence} for finding in self.findings]
        return {**plain, "classes": self.n_classes, "findings": findings}

    def against(self, test: Diagnosis) -> Diagnosis:
        """Return a copy with added findings if this set is for calibration and the other one for testing."""
        shared = self.fingerprint.share_in(test.fingerprint)
        wrong = {
            "same-set": shared > 0.99,
            "overlap": shared > 0.001,
            "same-labels": self.n == test.n and self.fingerprint.same_labels(test.fingerprint),
        }
        whole = "the same predictions" if self.n == test.n else "wholly contained"
        both = copy.copy(self)
        both.findings = [*self.findings, *_first(wrong, share=shared, other=test.name, whole=whole)]
        return both

    @property
    def accuracy(self) -> float:
        return self.right / max(1, self.usable)

    @property
    def confidence(self) -> float:
        return self.sure / max(1, self.usable)

    def add(self, batch: Predictions) -> None:
        """Count one slice."""
        self.kind, self.n_classes = batch.kind, batch.n_classes
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
        stranger = (kept.labels < 0) | (kept.labels >= (self.n_classes or 1 << 20))
        for value, count in zip(*np.unique(kept.labels[stranger].numpy(), return_counts=True), strict=True):
            if int(value) in self.strangers or len(self.strangers) < 100:
                self.strangers[int(value)] += int(count)
        self.labels = added(self.labels, torch.bincount(kept.labels[~stranger], minlength=self.n_classes or 0))
        self.predicted = added(self.predicted, torch.bincount(predicted.clamp(min=0), minlength=self.n_classes or 0))
        if kept.scores is not None:
            # Saturated rows can be equal without being the same sample, so they carry no information.
            self.fingerprint.add(kept.scores, kept.labels, confidence < 1 - 1e-6)

    def conclude(self) -> None:
        """Add the findings that follow from the counts, topic by topic."""
        found = self.findings
        if self.broken:
            found.append(_finding("nan", rows=_rows(self.broken, self.n), first=self.first_broken))
        if self.ignored:
            found.append(_finding("ignored", rows=_rows(self.ignored, self.n), label=self.ignore_index))
        if self.usable:
            found += [*self._about_the_kind(), *self._about_constants(), *self._about_labels()]
            if not self.stated and self.healthy:
                found += self._about_agreement()
            repeated = self.fingerprint.duplicates()
            if repeated > 0.01 and not {"rounded", "constant"} & {finding.name for finding in found}:
                found.append(_finding("duplicates", share=repeated))
        if self.error is not None:
            found.insert(0, _finding("unreadable", error=self.error))
        elif not self.n:
            found.append(_finding("empty"))
        found.sort(key=lambda finding: finding.level != "serious")

    def _about_the_kind(self) -> list[Finding]:
        low, high, sums, counts, n = self.values.low, self.values.high, self.sums, self.counts, self.usable
        nearly_all = {mark for mark, count in counts.items() if count > _NEARLY_ALL * n}
        outside = counts["within-unit"] < _NEARLY_ALL * n
        unequal = n - counts["adds-up"]
        wrong: dict[str, dict[str, object]] = {
            "triples": {"confidence": low < 0 or high > 1},
            "logits": {
                "probs-as-logits": "distribution" in nearly_all,
                "prob-as-logit": self.n_classes == 2 and "zero-and-fraction" in nearly_all and high > 0.6,
                "log-probs-as-logits": "log-distribution" in nearly_all,
            },
            "probs": {
                "log-probs-as-probs": outside and "log-distribution" in nearly_all,
                "percent": outside and low >= 0 and abs(sums.mean - 100) < 1,
                "logits-as-probs": outside,
                "class-axis": unequal > (1 - _NEARLY_ALL) * n and ((self.columns.total - 1).abs() < 0.05).all(),
                "sums": unequal,
                "rounded": max(1 - sums.low, sums.high - 1) > 0.002,
                "zero": counts["true-class-zero"],
            },
            "log_probs": {
                "probs-as-log-probs": "distribution" in nearly_all,
                "logits-as-log-probs": "log-distribution" not in nearly_all,
            },
        }
        percent = low >= 0 and 1 < high <= 100
        what = "it looks like a percentage: divide it by 100" if percent else "this is not a probability"
        rows = {"unequal": unequal, "zeros": counts["true-class-zero"], "unlike": n - counts["log-distribution"]}
        values = {name: _rows(count, n) for name, count in rows.items()}
        found = _first(wrong[self.kind], seen=self, what=what, **values)
        flat = "softmax-of-distribution" in nearly_all and self.accuracy >= self.confidence + 0.05
        if self.n_classes and flat and all(finding.level == "note" for finding in found):
            found.append(_finding("double-softmax", seen=self, most=np.e / (np.e + self.n_classes - 1)))
        return found

    def _about_constants(self) -> list[Finding]:
        if self.n_classes is None or self.usable == 1:
            return []
        constant = (self.columns.low == self.columns.high).nonzero().flatten().tolist()
        # With two classes, the reader may have added one of them, from a file with one column.
        wrong = {"constant": len(constant) == self.n_classes, "constant-class": constant and self.n_classes > 2}
        return _first(wrong, classes=_classes(constant, self.n_classes))

    def _about_labels(self) -> list[Finding]:
        k, strangers, present = self.n_classes or 0, sorted(self.strangers), int((self.labels > 0).sum())
        alike = present == 1 and self.usable > 1
        wrong = {
            "labels-from-1": strangers == [k] and self.labels.numel() and int(self.labels[0]) == 0,
            "ignore-label": len(strangers) == 1,
            "labels": strangers,
            "one-answer": alike and self.stated,
            "one-label": alike,
            "missing-class": present < k and self.usable >= 20 * k,
        }
        values = {
            "rows": _rows(self.strangers.total(), self.usable),
            "label": strangers[0] if strangers else self.labels.argmax(),
            "some": _some(strangers, 5),
            "answer": "right" if self.right else "wrong",
            "classes": _classes((self.labels == 0).nonzero().flatten().tolist(), k),
        }
        return _first(wrong, seen=self, top=k - 1, **values)

    def _about_agreement(self) -> list[Finding]:
        """Return findings about labels and predictions that are valid separately but do not match."""
        n, k, accuracy = self.usable, self.n_classes or 0, self.accuracy
        labels, predicted = pad_sequence([self.labels.double(), self.predicted.double()], batch_first=True)
        chance = float((labels / labels.sum()) @ (predicted / predicted.sum()))
        noise = 3 * (chance * (1 - chance) / n) ** 0.5 + 0.01
        never = ((predicted == 0) & (labels > 0)).nonzero().flatten().tolist()
        shift, count = max(self.off_by_one.items(), key=itemgetter(1))
        wrong = {
            "shifted-labels": count / n > accuracy + 0.3 and k != 2,
            "one-prediction": int((predicted > 0).sum()) == 1 and n >= 20,
            "shuffled-labels": n >= 100 and accuracy < chance + noise and self.confidence > chance + 0.3,
            "never-predicted": k and n >= 20 * k and never,
        }
        values = {"shift": shift, "share": count / n, "label": predicted.argmax(), "classes": _classes(never, k)}
        return _first(wrong, seen=self, chance=chance, **values)


class _Range:
    """Minimum, maximum and sum of all added values, over axis 0."""

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
    """Return, for each suspicious pattern, which rows match it."""
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
    # If these are softmax(q) of a distribution q, then q equals the log-probabilities, shifted to have the sum 1.
    inner = scores + (1 - scores.sum(1, keepdim=True)) / scores.shape[1]
    marks["softmax-of-distribution"] = (inner.amin(1) > -_CLOSE) & (inner.amax(1) < 1 + _CLOSE)
    return marks


def _rows(count: int, n: int) -> str:
    return f"{count} of {n} rows ({in_percent(count / n)})"


def _classes(some: list[int], k: int) -> str:
    shown = _some(some, 8)
    return f"class {shown} has" if len(some) == 1 else f"{len(some)} of {k} classes ({shown}) have"


def _some(numbers: list[int], most: int) -> str:
    return ", ".join(map(str, numbers[:most])) + ", ..." * (len(numbers) > most)
