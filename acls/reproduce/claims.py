"""The claims of the paper, the verdicts of our runs on them, and the summary page of a reproduction folder."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from acls.metrics.catalogue import metric
from acls.metrics.significance import SeedDifference
from acls.report.tables import Table
from acls.storage import write_text
from acls.study.ranking import difference
from acls.study.runs import NONE
from acls.study.store import Row, Store

Verdict = Literal["reproduced", "not reproduced", "undecided"]
KEPT = 0.01 + 1e-9
"""The accuracy that a method may lose: the paper's own tables show losses up to 0.94 points with a lower error.

A loss of exactly a point, such as 0.549 - 0.559, is not more than one.
"""
NAME = "summary.md"
"""Not README.md, because the folder may belong to the user."""


@dataclass(frozen=True)
class Claim:
    """A claim on two rows of a table: ``lower`` has a smaller calibration error than ``higher``, or keeps accuracy."""

    lower: str
    higher: str
    metric: str = "ece"

    @property
    def of_accuracy(self) -> bool:
        return self.metric not in ("ece", "aece")

    def __str__(self) -> str:
        if self.of_accuracy:
            return f"{metric(self.metric).label}: {self.lower} ≥ {self.higher} - {100 * KEPT:g}"
        return f"{self.metric.upper()}: {self.lower} < {self.higher}"


@dataclass(frozen=True)
class Judged:
    """A claim with the verdict of our runs: for the authors' form of ACLS, and additionally for Eq. 13."""

    claim: str
    verdict: Verdict
    difference: SeedDifference
    """``lower`` minus ``higher``, or our value minus the paper's, in the unit of the metric."""
    note: str = ""
    regime: str = ""
    """The networks that the verdict is about."""
    key: str = ""
    """Equal for the same claim on the same networks, also if different tables make it."""
    beside: Verdict | None = None


def verdict_on(found: SeedDifference, least: float = -math.inf, most: float = 0.0) -> Verdict:
    """Judge by its interval whether a difference is between ``least`` and ``most``; by default, if it is below 0."""
    if least <= found.low and found.high <= most:
        return "reproduced"
    return "not reproduced" if found.low > most or found.high < least else "undecided"


def judge(claim: Claim, lower: Sequence[Row], higher: Sequence[Row], accuracy: str = "accuracy") -> Judged | None:
    """Compare the rows of two methods; return None if they have no common seed.

    A lower error with a loss of accuracy does not count as reproduced.
    """
    found = difference(lower, higher, claim.metric)
    if found is None:
        return None
    if claim.of_accuracy:
        return Judged(str(claim), verdict_on(found, -KEPT, math.inf), found)
    verdict, lost, note = verdict_on(found), difference(lower, higher, accuracy), ""
    if lost is not None and lost.value < -KEPT:
        note = f"loses {-100 * lost.value:.1f} points of {metric(accuracy).label}"
        if verdict == "reproduced":
            verdict = verdict_on(lost, -KEPT, math.inf)
    return Judged(str(claim), verdict, found, note)


def summarise(folder: Path, names: Iterable[str]) -> None:
    """Write the summary page of those ``names`` that are in the folder."""
    files = [folder / f"{name}.json" for name in names]
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    parts = ["# The paper, reproduced", _counted(records), _table(records), *_costs(folder)]
    write_text(folder / NAME, "\n\n".join(part for part in parts if part) + "\n")


def _counted(records: Iterable[Mapping[str, Any]]) -> str:
    """Count the verdicts in the JSON that is stored beside each page.

    A claim that several tables make about the same networks counts once, with most seeds.
    """
    claims = sorted((claim for record in records for claim in record["claims"]), key=lambda claim: claim["seeds"])
    distinct = {claim["key"]: claim for claim in claims}.values()
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


def _table(records: Iterable[Mapping[str, Any]]) -> str:
    verdicts = get_args(Verdict)
    table = Table(["page", "what", "scale", "seeds", *verdicts], align="lll")
    for record in records:
        found = Counter(claim["verdict"] for claim in record["claims"])
        counts = [str(found[verdict]) if found else "" for verdict in verdicts]
        page, what = f"[{record['name']}]({record['name']}.md)", record["title"].rpartition(": ")[2]
        table.add(page, what, record["scale"], record["seeds"], *counts)
    return table.markdown()


def _costs(folder: Path) -> list[str]:
    """Return the training costs of the networks in the folder."""
    table = Table(["study", "networks", "hours of training", "minutes per network"], align="l")
    studies = [Store(file.parent) for file in sorted(folder.glob("studies/*/study.sqlite"))]
    for study in studies:
        seconds = [row.seconds for row in study.rows() if row.posthoc == NONE]
        if seconds:
            hours = sum(seconds) / 3600
            table.add(study.folder.name, str(len(seconds)), f"{hours:.1f}", f"{60 * hours / len(seconds):.1f}")
    return ["Each network was trained once for all pages:", table.markdown()] if studies else []
