"""The page over all that was reproduced in a folder: what was claimed and what came of it, and what it took."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from acls.report.tables import Table
from acls.reproduce.claims import Verdict
from acls.storage import finite, write_text
from acls.study.runs import NONE
from acls.study.store import Store

NAME = "summary.md"
"""Not README.md: the folder may be somebody's own."""
Record = Mapping[str, Any]
"""What is kept of a table or figure beside its page, as JSON."""


def keep(folder: Path, record: Record) -> None:
    """Keep what a table or figure came to, so that the summary can tell it also after another command."""
    write_text(folder / f"{record['name']}.json", json.dumps(finite(dict(record)), indent=1) + "\n")


def summarise(folder: Path, names: Iterable[str]) -> Path:
    """Write the page over those of ``names`` that are in the folder, and return where it is."""
    files = [folder / f"{name}.json" for name in names]
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    parts = ["# The paper, reproduced", _counted(records), _table(records), *_costs(folder)]
    write_text(folder / NAME, "\n\n".join(part for part in parts if part) + "\n")
    return folder / NAME


def _verdicts(record: Record) -> Counter[str]:
    return Counter(claim["verdict"] for claim in record["claims"])


def _counted(records: Iterable[Record]) -> str:
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


def _table(records: Iterable[Record]) -> str:
    verdicts = get_args(Verdict)
    table = Table(["page", "what", "scale", "seeds", *verdicts], align="lll")
    for record in records:
        found = _verdicts(record)
        counts = [str(found[verdict]) if found else "" for verdict in verdicts]
        page = f"[{record['name']}]({record['name']}.md)"
        table.add(
            page, record["title"].partition(": ")[2] or record["title"], record["scale"], record["seeds"], *counts
        )
    return table.markdown()


def _costs(folder: Path) -> list[str]:
    """What the networks took that the folder holds."""
    table = Table(["study", "networks", "hours of training", "minutes a network"], align="l")
    studies = [Store(file.parent) for file in sorted(folder.glob("studies/*/study.sqlite"))]
    for study in studies:
        seconds = [row.seconds for row in study.rows() if row.posthoc == NONE]
        if seconds:
            hours = sum(seconds) / 3600
            table.add(study.folder.name, str(len(seconds)), f"{hours:.1f}", f"{60 * hours / len(seconds):.1f}")
    return ["Each network was trained once for all pages:", table.markdown()] if studies else []
