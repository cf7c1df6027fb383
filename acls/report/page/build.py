"""Build the report page: one HTML file that needs no other files and no network.

A small script of acls draws the diagrams as SVG from sums (`acls.report.page.diagram_data`), about 10 kB per network. A
plotting library would add megabytes to every page (Plotly: 4.8 MB), and it does not support bins, intervals and floors.

Text from files, such as the names of methods and classes, is treated as data. It is escaped in HTML, and the JSON block
is encoded so that no text can end it. The script inserts it only as text. As a second protection, the content security
policy of the page allows only the script of acls, by its hash, and no external resources.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import acls
from acls.errors import InputError
from acls.metrics.catalogue import CATALOGUE, names
from acls.report import results as views
from acls.report.page.diagram_data import OFFERED, OFFERED_OF_MANY, binned, by_class, short
from acls.report.page.overview import conclusions, decisions, overview
from acls.report.page.subjects import Subject, by_method, by_protocol, rank_subjects, records, told_apart
from acls.report.tables import Table
from acls.results import Record
from acls.shown import Shown
from acls.storage import write_text
from acls.study.ranking import Ranked
from acls.study.runs import NONE

CLASSES = 1000
"""Total number of class rows, divided among the networks: the page stays small with many classes or networks."""
MANY = 150
"""With more diagrams than this, a page offers fewer numbers of bins."""
PICTURES = 1_500_000
"""Largest total size of the pictures, in bytes."""
_FLOOR = (
    "The noise floor is the ECE that a perfectly calibrated model with the same confidences would show at the same n."
)
_CURVES = (
    "train/loss", "train/accuracy", "val/accuracy", "val/nll", "val/ece", "val/temperature", "val/logit_gap",
    "val/regulariser_active",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """A written page and its content; ``form`` is the format of the tables, and ``notes`` say what was left out."""

    page: Path
    verdict: Sequence[str]
    decisions: Sequence[str]
    subjects: Sequence[Subject]
    ranked: Sequence[Ranked]
    figures: Sequence[Path]
    tables: Sequence[str]
    form: str | None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what `acls report --json` prints."""
        files = {"report": str(self.page), "figures": list(map(str, self.figures))}
        said = {"verdict": self.verdict, "decisions": self.decisions}
        return {**said, "models": [one.plain() for one in self.subjects], **files, "tables": self.tables}


def write(
    subjects: Sequence[Subject],
    path: str | Path,
    *,
    title: str | None = None,
    ranked: Sequence[Ranked] | None = None,
    max_error: float | None = None,
) -> None:
    """Write the page about subjects, atomically: `acls.report.page.sources` opens runs, studies and files.

    Networks with the same name that are not seeds of one method get different names. ``ranked`` says which differences
    between methods are more than chance; if it is None, it is computed. With ``max_error`` the page gives the
    confidence above which at most that share of the predictions is wrong.
    """
    subjects = told_apart(subjects)
    found = rank_subjects(subjects) if ranked is None else ranked
    write_text(path, render(subjects, title=title or _title(subjects), ranked=found, max_error=max_error))


def _title(subjects: Sequence[Subject]) -> str:
    """Return the name and size of a study, or the title of a single network."""
    if len(subjects) == 1:
        return f"Calibration of {subjects[0].method}"
    recipes = {subject.recipe.name for subject in subjects if subject.recipe is not None}
    name = recipes.pop() if len(recipes) == 1 else "Calibration report"
    methods, seeds = by_method(subjects), {subject.seed for subject in subjects}
    return f"{name}: {len(methods)} methods" + (f", {len(seeds)} seeds" if len(seeds) > 1 else "")


def render(
    subjects: Sequence[Subject], *, title: str, ranked: Sequence[Ranked] = (), max_error: float | None = None
) -> str:
    """Return the HTML of the page."""
    if not subjects:
        raise InputError("a page needs at least one run or file")
    page = files("acls.report.page")
    script, style, frame = ((page / name).read_text(encoding="utf-8") for name in ("page.js", "page.css", "page.html"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    groups = by_protocol(records(subjects))
    now, sentences = datetime.now(UTC), conclusions(subjects, ranked)
    return string.Template(frame).substitute(
        title=html.escape(title),
        digest=digest,
        style=style,
        answer=html.escape(sentences[0]),
        decisions="" if max_error is None else f"<ul>{_sentences(decisions(subjects, max_error))}</ul>",
        overview=overview(subjects) if len(subjects) > 1 else "",
        open="" if len(subjects) > 1 else " hidden",
        verdict=_sentences(sentences[1:]),
        results="\n".join(_results(group, views.marks_of(ranked), name=len(groups) > 1) for group in groups)
        + "\n".join(_against(one) for one in ranked if one.metric == "ece"),
        version=html.escape(acls.__version__),
        date=f"{now:%Y-%m-%d %H:%M} UTC",
        data=embedded(_data(subjects)),
        script=script,
    )


def results(subjects: Sequence[Subject], ranked: Sequence[Ranked] = ()) -> list[Table]:
    """Return the tables over seeds, one per protocol; the best is marked if it differs by more than chance."""
    groups = by_protocol(records(subjects))
    return [views.results_table(group, _present(group), marks=views.marks_of(ranked)) for group in groups]


def embedded(value: Any) -> str:
    """Encode a value as JSON for a script element: no text in it can end the element or start a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _sentences(sentences: Sequence[str]) -> str:
    return "\n".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)


def _results(group: Sequence[Record], marks: views.Marks, *, name: bool) -> str:
    """Return the table over seeds and a collapsed table of all networks; only the latter if no method has two seeds.

    If ``name`` is True, the protocol is named above the tables.
    """
    protocol = "; ".join(f"{key} {value}" for key, value in group[0].protocol.items())
    title = f"<h3>{html.escape(protocol or 'unknown protocol')}</h3>\n" if name else ""
    columns = _present(group)
    networks = _scrolling(views.networks_table(group, columns, marks=marks), "Results by network")
    if len({(one.method, one.posthoc) for one in group}) == len(group):
        return f'{title}<p class="hint">{_FLOOR}</p>\n{networks}'
    summary = _scrolling(views.results_table(views.best_first(group), columns, marks=marks), "Results by method")
    return (
        f'{title}<p class="hint">Mean ± standard deviation over seeds.</p>\n{summary}\n'
        "<details><summary>Every network, with intervals and noise floors</summary>\n"
        f'<p class="hint">{_FLOOR}</p>\n{networks}\n</details>'
    )


def _against(ranked: Ranked) -> str:
    """Return the table of each method's ECE against the first method, after one post-hoc method."""
    after = "" if ranked.posthoc == NONE else f" after {ranked.posthoc}"
    title = html.escape(f"ECE against {ranked.baseline}{after}")
    hint = f'<p class="hint">{html.escape(views.about_baseline(ranked))}</p>'
    return f"<h3>{title}</h3>\n{hint}\n{_scrolling(views.baseline_table(ranked), title)}\n"


def _scrolling(table: Table, label: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">\n{table.html()}\n</div>'


def _present(group: Sequence[Record]) -> list[str]:
    return [name for name in names(2) if any(name in one.result.estimates for one in group)]


def _data(subjects: Sequence[Subject]) -> dict[str, Any]:
    places = _places(subjects)
    diagrams = sum(len(subject.states) for subject in subjects)
    most, offered = max(5, CLASSES // diagrams), OFFERED if diagrams <= MANY else OFFERED_OF_MANY
    return {
        "bins": offered,
        "asIs": NONE,
        "metrics": {name: [shown.title, shown.scale, shown.decimals] for name, shown in CATALOGUE.items()},
        "subjects": [_subject(subject, most, offered, places) for subject in subjects],
        "methods": list(by_method(subjects)),
        "pictures": list(places),
    }


def _subject(subject: Subject, most: int, offered: Sequence[int], places: Mapping[str, int]) -> dict[str, Any]:
    mistakes = [
        {**vars(one), "confidence": short(one.confidence), "picture": places.get(subject.pictures.get(one.unit, ""))}
        for one in subject.mistakes
    ]
    return {
        "method": subject.method,
        "seed": subject.seed,
        "source": subject.source,
        "names": subject.names,
        "byImage": subject.as_is.result.unit == "image",
        "states": [_state(state, subject, most, offered) for state in subject.states],
        "mistakes": mistakes,
        "curves": _curves(subject),
        "settings": subject.settings,
        "environment": subject.environment,
    }


def _state(state: Record, subject: Subject, most: int, offered: Sequence[int]) -> dict[str, Any]:
    result, suite = state.result, state.result.suite
    return {
        "name": state.posthoc,
        "n": result.n,
        "temperature": _finite(subject.temperature) if state is subject.scaled else None,
        "note": "" if state.posthoc == NONE else subject.note,
        "protocol": state.protocol,
        "numbers": {
            name: [_finite(part) for part in (one.value, one.low, one.high, result.get(f"{name}_floor"), one.debiased)]
            for name in CATALOGUE
            if (one := result.estimates.get(name)) is not None
        },
        "binned": None if suite is None else binned(suite.confidences, offered),
        "classes": [] if suite is None or suite.classwise is None else by_class(suite.classwise, most),
    }


def _curves(subject: Subject) -> dict[str, list[float | None]]:
    if not subject.history:
        return {}
    names = [name for name in _CURVES if name in subject.history[0]]
    # Keep only the digits that a curve can show.
    curves = {name: [_finite(row.get(name), 4) for row in subject.history] for name in names}
    return {"epoch": [short(row["epoch"] + 1) for row in subject.history], **curves}


def _finite(value: float | None, digits: int = 7) -> float | None:
    return None if value is None or not math.isfinite(value) else short(value, digits)


def _places(subjects: Sequence[Subject]) -> dict[str, int]:
    """Return the index of each picture: each is stored once for all networks, up to the limit of the page."""
    places: dict[str, int] = {}
    left = PICTURES
    for address in (
        one.pictures[mistake.unit] for one in subjects for mistake in one.mistakes if mistake.unit in one.pictures
    ):
        if address not in places and len(address) <= left:
            left -= len(address)
            places[address] = len(places)
    return places
