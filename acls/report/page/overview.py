"""The page's first picture: every method's ECE before and after temperature scaling, the noise floor, the accuracy."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from acls.metrics.catalogue import metric
from acls.report.page.subjects import Record, Subject, by_method

Spans = Sequence[tuple[float, float | None, float | None]]
"""Value and ends of the interval, one per seed."""


@dataclass(frozen=True)
class Line:
    """What the picture shows of one method; fractions, one value per seed."""

    method: str
    before: Spans
    after: Spans
    floor: Sequence[float]
    accuracy: Sequence[float]

    @property
    def ece(self) -> float:
        return statistics.fmean(value for value, _, _ in self.before)


def lines_of(subjects: Sequence[Subject]) -> list[Line]:
    """A line per method, from what was measured of its seeds."""

    def values(found: Sequence[Record], name: str) -> list[float]:
        return [value for one in found if (value := one.result.get(name)) is not None]

    def spans(found: Sequence[Record]) -> Spans:
        eces = [one.result.estimates["ece"] for one in found if one.result.get("ece") is not None]
        return [(one.value, one.low, one.high) for one in eces]

    lines = []
    for method, group in by_method(subjects).items():
        before = [one.as_is for one in group]
        after = [state for one in group if (state := one.after("Temperature")) is not None]
        floors, accuracies = (values(before, name) for name in ("ece_floor", "accuracy"))
        lines.append(Line(method, spans(before), spans(after), floors, accuracies))
    return lines


def overview(lines: Sequence[Line]) -> str:
    """A table whose rows are the methods, the lowest ECE first, with a picture in each; empty without an ECE."""
    lines = sorted((line for line in lines if line.before), key=lambda line: line.ece)
    if not lines:
        return ""
    spans = [span for line in lines for span in (*line.before, *line.after)]
    most = 1.05 * max(max(value, high or 0.0) for value, _, high in spans) or 1.0
    scaled = any(line.after for line in lines)
    titles = ["method", f"ECE, 0 to {100 * most:.3g} %", "ECE %", *["after T %"] * scaled, "accuracy %"]
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "\n".join(_row(line, most, scaled=scaled) for line in lines)
    return (
        f'<table class="overview"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n'
        '<p class="hint legend"><i class="dot before"></i> as trained'
        + (' <i class="dot after"></i> after temperature scaling' if scaled else "")
        + ' <i class="floor"></i> noise floor: the ECE that a calibrated model would show at this n. '
        "Small dots: seeds. Lines: 95 % intervals, averaged over seeds.</p>"
    )


def _row(line: Line, most: float, *, scaled: bool) -> str:
    marks = [f'<i class="floor" style="width:{_share(statistics.fmean(line.floor), most)}"></i>'] if line.floor else []
    for kind, spans in (("before", line.before), ("after", line.after)):
        marks += _marks(kind, spans, most)
    numbers = [[value for value, _, _ in line.before], *[[value for value, _, _ in line.after]] * scaled]
    cells = [_mean("ece", values) for values in numbers] + [_mean("accuracy", line.accuracy)]
    return (
        f'<tr><th scope="row">{html.escape(line.method)}</th><td class="track">{"".join(marks)}</td>'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
    )


def _marks(kind: str, spans: Spans, most: float) -> list[str]:
    if not spans:
        return []
    ends = [(low, high) for _, low, high in spans if low is not None and high is not None]
    found = []
    if ends:
        low, high = (statistics.fmean(side) for side in zip(*ends, strict=True))
        width = _share(high - low, most)
        found.append(f'<i class="range {kind}" style="left:{_share(low, most)};width:{width}"></i>')
    if len(spans) > 1:
        found += [f'<i class="seed {kind}" style="left:{_share(value, most)}"></i>' for value, _, _ in spans]
    mean = statistics.fmean(value for value, _, _ in spans)
    return [*found, f'<i class="dot {kind}" style="left:{_share(mean, most)}"></i>']


def _share(value: float, most: float) -> str:
    return f"{100 * min(max(value / most, 0.0), 1.0):.2f}%"


def _mean(name: str, values: Sequence[float]) -> str:
    return metric(name).show(statistics.fmean(values)) if values else ""
