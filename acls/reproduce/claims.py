"""What the paper claims, whether our runs bear it out, and the page over all that was reproduced in a folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from acls.metrics.significance import SeedDifference
from acls.report.tables import Table
from acls.storage import write_text
from acls.study.ranking import difference
from acls.study.runs import NONE
from acls.study.store import Row, Store

Verdict = Literal["reproduced", "not reproduced", "cannot be told at this n"]
_VERDICTS: tuple[Verdict, ...] = ("reproduced", "cannot be told at this n", "not reproduced")
KEPT = 0.01
"""The accuracy that a method may lose: the paper's own tables show a loss of up to 0.94 points beside a lower error."""

NAME = "summary.md"
"""Not README.md: the folder may be somebody's own."""
Saved = Mapping[str, Any]
"""What is kept of a table or figure beside its page, as JSON."""


@dataclass(frozen=True)
class Claim:
    """``lower`` has a smaller calibration error than ``higher``, or keeps its accuracy; both are rows of one table."""

    lower: str
    higher: str
    metric: str = "ece"

    @property
    def of_accuracy(self) -> bool:
        return self.metric not in ("ece", "aece")

    def __str__(self) -> str:
        if self.of_accuracy:
            name = "accuracy" if self.metric == "accuracy" else "mIoU"
            return f"{self.lower} keeps the {name} of {self.higher} to within {100 * KEPT:g} point"
        return f"{self.lower} has a lower {self.metric.upper()} than {self.higher}"


@dataclass(frozen=True)
class Judged:
    """A claim with the differences that our runs show, ``lower`` minus ``higher``, in the metric's own unit."""

    claim: Claim
    difference: SeedDifference
    accuracy: SeedDifference | None = None

    @property
    def loses_accuracy(self) -> bool:
        return self.accuracy is not None and self.accuracy.high < -KEPT

    @property
    def verdict(self) -> Verdict:
        """By the interval of the difference; an error that is lower at the cost of accuracy reproduces nothing."""
        found = self.difference
        if self.claim.of_accuracy:
            return _VERDICTS[(found.high < -KEPT) - (found.low > -KEPT) + 1]
        return "not reproduced" if found.sign < 0 and self.loses_accuracy else _VERDICTS[found.sign + 1]


def within(found: SeedDifference, tolerance: float) -> Verdict:
    """Whether a number is the paper's to within a tolerance, from the interval of ours minus the paper's."""
    if -tolerance <= found.low and found.high <= tolerance:
        return "reproduced"
    return "not reproduced" if found.low > tolerance or found.high < -tolerance else "cannot be told at this n"


def judge(claim: Claim, lower: Sequence[Row], higher: Sequence[Row], accuracy: str = "accuracy") -> Judged | None:
    """Compare two methods' rows; None where they have no number of the same seed."""
    found = difference(lower, higher, claim.metric)
    lost = None if claim.of_accuracy else difference(lower, higher, accuracy)
    return None if found is None else Judged(claim, found, lost)


def summarise(folder: Path, names: Iterable[str]) -> Path:
    """Write the page over those of ``names`` that are in the folder, and return where it is."""
    files = [folder / f"{name}.json" for name in names]
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    parts = ["# The paper, reproduced", _counted(records), _table(records), *_costs(folder)]
    write_text(folder / NAME, "\n\n".join(part for part in parts if part) + "\n")
    return folder / NAME


def _counted(records: Iterable[Saved]) -> str:
    """Count each claim once, however many tables make it of the same networks."""
    distinct = {claim["key"]: claim for record in records for claim in record["claims"]}.values()
    if not distinct:
        return ""
    total = Counter(claim["verdict"] for claim in distinct)
    beside = Counter(claim["beside"] for claim in distinct if claim["beside"])
    counts, others = (", ".join(f"{of[verdict]} {verdict}" for verdict in get_args(Verdict)) for of in (total, beside))
    regimes = "; ".join(dict.fromkeys(claim["regime"] for claim in distinct))
    return (
        f"Of {total.total()} distinct claims, each judged on our own runs by the 95 % interval of the difference over "
        f"seeds and test samples, on the authors' form of ACLS: {counts}. On Eq. 13 instead, of the {beside.total()} "
        f"that are about ACLS: {others}. These verdicts hold for: {regimes}."
    )


def _table(records: Iterable[Saved]) -> str:
    verdicts = get_args(Verdict)
    table = Table(["page", "what", "scale", "seeds", *verdicts], align="lll")
    for record in records:
        found = Counter(claim["verdict"] for claim in record["claims"])
        counts = [str(found[verdict]) if found else "" for verdict in verdicts]
        page = f"[{record['name']}]({record['name']}.md)"
        table.add(
            page, record["title"].partition(": ")[2] or record["title"], record["scale"], record["seeds"], *counts
        )
    return table.markdown()


def _costs(folder: Path) -> list[str]:
    """What the networks took that the folder holds."""
    table = Table(["study", "networks", "hours of training", "minutes per network"], align="l")
    studies = [Store(file.parent) for file in sorted(folder.glob("studies/*/study.sqlite"))]
    for study in studies:
        seconds = [row.seconds for row in study.rows() if row.posthoc == NONE]
        if seconds:
            hours = sum(seconds) / 3600
            table.add(study.folder.name, str(len(seconds)), f"{hours:.1f}", f"{60 * hours / len(seconds):.1f}")
    return ["Each network was trained once for all pages:", table.markdown()] if studies else []
