"""Tables of results: one set of predictions, groups, comparisons of models, and methods over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from acls.errors import InputError
from acls.metrics.catalogue import CATALOGUE, Metric, metric, names
from acls.metrics.estimates import Estimate
from acls.metrics.significance import Difference, Floor, SeedDifference
from acls.report.tables import Mark, Table, spread
from acls.results import LEVEL, Advice, Differences, Record, Result, show_p
from acls.results.recommending import AS_IT_IS
from acls.shown import Shown, frame
from acls.study.ranking import Ranked
from acls.study.runs import Failed

K = TypeVar("K")
T = TypeVar("T")

COLUMNS = tuple(names(1))
"""Metrics that a table shows by default."""
RANKED = tuple(names(2))
"""Metrics by which methods are ranked, in the terminal and on the page."""

Marks = Mapping[tuple[str, str, str], Mark]
"""By method, post-hoc method and metric."""


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The results of a finished study, or of compared files of predictions, and the page that shows them.

    ``rows`` has one row per method, seed and post-hoc method; ``row.result["ece"]`` is a number. ``ranked`` compares
    the best method by each metric with all others, and all methods with the first.
    """

    rows: Sequence[Record]
    ranked: Sequence[Ranked]
    failed: Sequence[Failed] = ()
    folder: Path | None = None
    page: Path | None = None

    @property
    def answer(self) -> list[str]:
        """Return one sentence on the best method without post-hoc calibration, and one per post-hoc method."""
        return [about_ranking(one) for one in self.ranked if one.metric == "ece"]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame: a row per method, seed and post-hoc method, with every metric."""
        about = ("method", "seed", "posthoc", "n")
        return frame({**{name: getattr(one, name) for name in about}, **one.result.values} for one in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return what `acls compare --json` prints."""
        derived = ("next", "difference", "significant")
        return {
            "answer": self.answer,
            "rows": [one.as_json() for one in self.rows],
            "ranking": [asdict(one) | {name: getattr(one, name) for name in derived} for one in self.ranked],
            "failed": [asdict(one) for one in self.failed],
            "report": None if self.page is None else str(self.page),
        }


def metric_table(result: Result) -> Table:
    """Return a table with a line per metric: value, debiased estimate, interval and noise floor."""
    titles = ["metric", "value", "debiased", "95 % interval", "noise floor", "95 % of floors"]
    table = Table(titles, optional=("95 % of floors", "noise floor"))
    for name in names(3, among=result.estimates):
        one, shown = result.estimates[name], metric(name)
        value, debiased, floor = map(shown.show, (one.value, one.debiased, result.get(f"{name}_floor")))
        table.add(shown.title, value, debiased, _range(name, one), floor, _range(name, result.floors.get(name)))
    return table


def group_table(groups: Mapping[str, Result]) -> Table:
    """Return a table with a line per group."""
    columns = [name for name in names(1) if any(name in group.estimates for group in groups.values())]
    hidden = (metric("aece").title, "noise floor", metric("nll").title)
    table = Table(["group", "n", *_titles(columns)], optional=hidden)
    for group, result in groups.items():
        table.add(group, str(result.n), *_cells(columns, result))
    return table


def comparison_table(first: Result, other: Result, compared: Mapping[str, Difference]) -> Table:
    """Return a table with a line per metric: both values, their debiased difference, its interval and p-value."""
    table = Table(["metric", "first", "this", "difference", "95 % interval", "p"], optional=("first", "this"))
    for name in names(3, among=compared):
        one, shown = compared[name], metric(name)
        cells = (shown.show(first.get(name)), shown.show(other.get(name)), shown.show(one.difference, sign=True))
        table.add(shown.title, *cells, _range(name, one), _p(one.p))
    return table


def protocol_table(measured: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table with a line per protocol."""
    columns = [name for name in CATALOGUE if any(name in numbers for numbers in measured.values())]
    table = Table(["protocol", *(metric(name).title for name in columns), "n"], optional=_hidden_first(columns))
    for protocol, numbers in measured.items():
        cells = (metric(name).show(numbers.get(name)) for name in columns)
        table.add(protocol, *cells, f"{numbers.get('n', 0):.0f}")
    return table


def judged_table(advice: Advice) -> Table:
    """Return a table with a line per calibrator: NLL and ECE on held-out folds, their change, and the advice."""
    nll, ece = metric("nll"), metric("ece")
    titles = ["held out in VAL", "NLL", "change", "± s.e.", "ECE %", "change %", "± s.e. %", "advice"]
    table = Table(titles, optional=("± s.e. %", "± s.e.", "change %"))
    before = advice.candidates[0].judgement.before
    table.add(AS_IT_IS, nll.show(before.nll), "", "", ece.show(before.ece))
    for one in advice.candidates:
        found, advised = one.judgement, "use" if one.use else "unfit" if one.doubts else "keep as it is"
        by_nll = _change(nll, found.before.nll, found.after.nll, found.nll_change_se)
        by_ece = _change(ece, found.before.ece, found.after.ece, found.ece_change_se)
        table.add(one.name, *by_nll, *by_ece, advised)
    return table


def _change(shown: Metric, before: float, after: float, error: float) -> tuple[str, str, str]:
    return shown.show(after), shown.show(after - before, sign=True), shown.show(error)


def tested_table(results: Mapping[str, Result], changes: Differences) -> Table:
    """Return a table with a line per calibrator on test predictions, with p-values for no change in NLL and ECE."""
    columns = [name for name in ("accuracy", "nll", "ece") if any(name in one.estimates for one in results.values())]
    titles = [*_titles(columns), *(f"p, {metric(name).label}" for name in columns[1:])]
    table = Table(["", *titles], optional=("accuracy %", "noise floor"))
    for name, result in results.items():
        found = changes.comparisons.get(name, {})
        table.add(name, *_cells(columns, result), *(_p(found[one].p) if one in found else "" for one in columns[1:]))
    return table


def results_table(records: Sequence[Record], columns: Sequence[str] = COLUMNS, *, marks: Marks | None = None) -> Table:
    """Return a table with a line per method and post-hoc method: mean ± standard deviation over seeds, seeds, and n.

    ``marks`` gives the best and the second value by (method, posthoc, metric). The caller must compute them, because
    the table does not know which differences are more than chance. Records with different protocols raise an error.
    """
    _refuse_mixed(records)
    titles = [metric(name).title for name in columns]
    hidden = ("n", "seeds", *_hidden_first(columns), metric("ece_floor").title)
    table = Table(["method", "post-hoc", *titles, "seeds", "n"], align="ll", optional=hidden)
    for (method, posthoc), group in by_method(records).items():
        cells = [mean_text(group, name) for name in columns]
        sizes = sorted({one.n for one in group})
        table.add(method, posthoc, *cells, str(len(group)), "-".join(map(str, {sizes[0]: 0, sizes[-1]: 0})))
        for column, name in enumerate(columns, 2):
            if mark := (marks or {}).get((method, posthoc, name)):
                table.marks[len(table.rows) - 1, column] = mark
    return table


def best_first(records: Sequence[Record]) -> list[Record]:
    """Sort records as the terminal and the page show them: by post-hoc method, then by mean ECE, the lowest first."""
    posthocs = list(dict.fromkeys(one.posthoc for one in records))

    def place(group: Sequence[Record]) -> tuple[int, float]:
        known = metric_values(group, "ece")
        return posthocs.index(group[0].posthoc), statistics.fmean(known) if known else float("inf")

    return [one for group in sorted(by_method(records).values(), key=place) for one in group]


def networks_table(records: Sequence[Record], columns: Sequence[str], *, marks: Marks | None = None) -> Table:
    """Return a table with a line per network and post-hoc method, with debiased ECE, its interval and its floor."""
    titles = _titles(columns)
    seeded = any(one.seed is not None for one in records)
    table = Table(["method", *["seed"] * seeded, "post-hoc", *titles, "n"], align="lrl" if seeded else "ll")
    for one in records:
        seed = ["" if one.seed is None else str(one.seed)] * seeded
        table.add(one.method, *seed, one.posthoc, *_cells(columns, one.result), str(one.n))
        for name in () if seeded else columns:  # with seeds, marks are about means
            if mark := (marks or {}).get((one.method, one.posthoc, name)):
                table.marks[len(table.rows) - 1, 2 + titles.index(metric(name).title)] = mark
    return table.filled()


def ranking_table(ranked: Sequence[Ranked]) -> Table:
    """Return a table with a line per metric and post-hoc method: the best method minus the second, and the p-value."""
    table = Table(["best by", "post-hoc", "best", "next", "difference", "p"], align="llll", optional=("difference",))
    for one in ranked:
        shown = metric(one.metric)
        table.add(shown.title, one.posthoc, one.best, one.next, shown.show(one.difference, sign=True), _p(one.p))
    return table


def baseline_table(ranked: Ranked) -> Table:
    """Return a table with the difference of each method to the baseline, and of the baseline's post-hoc methods.

    The best mean comes first; the baseline itself has no row.
    """
    shown, compared = metric(ranked.metric), {**ranked.to_baseline, **ranked.scaled}
    means = {name: ranked.means[ranked.baseline] + one.value for name, one in compared.items()} | dict(ranked.means)
    value = "debiased" if ranked.debiased else "value"
    table = Table([f"{shown.title} against {ranked.baseline}", value, "difference", "95 % interval", "p"])
    for name, found in sorted(compared.items(), key=lambda one: shown.sign * means[one[0]]):
        worth = _range(ranked.metric, found), _p(found.p)
        known = (_few(found), "") if math.isinf(found.low) else worth
        table.add(name, shown.show(means[name]), shown.show(found.value, sign=True), *known)
    return table


def about_baseline(ranked: Ranked) -> str:
    """Explain the intervals and p-values of `baseline_table`."""
    compared = {"methods": ranked.to_baseline, "post-hoc methods": ranked.scaled}
    many = " and ".join(f"for {len(found)} {what}" for what, found in compared.items() if len(found) > 1)
    by = "debiased estimates, which lack the bias of noise" if ranked.debiased else "plain values, biased by noise"
    over = "seeds and test samples" if any(one.seeds > 1 for one in ranked.to_baseline.values()) else "test samples"
    over += f", corrected {many} (Bonferroni)" if many else ""
    return f"Against {ranked.baseline}: differences of {by}; intervals and p-values over {over}."


def _few(found: SeedDifference) -> str:
    return "one seed" if found.seeds == 1 else "seeds with equal results"


def about_tests(ranked: Sequence[Ranked]) -> str:
    """Say whether there is a best method by any metric, and explain the p-values of `ranking_table`."""
    known = any(one.significant for one in ranked)
    lead = "Best by: p tests that another method is as good" if known else "No method stands out by any metric"
    return f"{lead}; p-values are corrected for their number (Holm), except for the ECE as trained."


def about_ranking(ranked: Ranked) -> str:
    """Return one sentence on a ranking by ECE: the best method, its difference to the baseline, interval and p-value.

    Interval and p-value are those of `baseline_table`. If the baseline is the best, it is compared with the second.
    """
    best, show = ranked.best, metric("ece").show
    other, compared = (ranked.next, ranked.next) if best == ranked.baseline else (ranked.baseline, best)
    found = ranked.to_baseline[compared]
    if ranked.significant and found.p >= LEVEL:  # it differs from every other method, including this one
        found = ranked.against[other]
    after = "" if ranked.posthoc == "none" else f" after {ranked.posthoc}"
    by = f"{show(ranked.means[best])} %{' debiased' * ranked.debiased}, {show(abs(found.value))} points below {other}"
    lead = f"{best} has the lowest ECE{after}, {by}"
    if math.isinf(found.low):
        return f"{lead}; {_few(found)} cannot tell this from chance: compare at least two seeds, preferably five."
    low, high = sorted(math.copysign(1, found.value) * end for end in (found.low, found.high))
    ends = f"{show(low)} to {show(high)}" if low >= 0 else f"{show(-low)} above to {show(high)} below"
    worth = f"(95 % interval {ends}; p {show_p(found.p)})"
    if found.p >= LEVEL:
        needed = "more test samples" if found.needed is None else f"about {found.needed} seeds"
        return f"{lead}, which may be chance {worth}: telling them apart would take {needed}."
    every = "it differs from every other method's" if ranked.significant else "another method may be as good"
    return f"{lead} {worth}{f'; {every} (p {show_p(ranked.p)})' if len(ranked.against) > 1 else ''}."


def marks_of(ranked: Iterable[Ranked]) -> dict[tuple[str, str, str], Mark]:
    """Return the marks of a table: best and second if the best differs from all others by more than chance."""
    marks: dict[tuple[str, str, str], Mark] = {}
    for one in ranked:
        if one.significant:
            marks[one.best, one.posthoc, one.metric] = "best"
            marks[one.next, one.posthoc, one.metric] = "second"
    return marks


def signs() -> str:
    """Explain the marks of a table in plain text."""
    return "* best after the same post-hoc method, and different from all others by more than chance; ' the next."


def metric_values(records: Iterable[Record], name: str) -> list[float]:
    """Return the values of a metric for the records that have it."""
    return [value for one in records if (value := one.result.get(name)) is not None]


def mean_text(records: Iterable[Record], name: str) -> str:
    """Format the mean ± standard deviation of a metric, in its unit; empty if no record has it."""
    return spread(metric_values(records, name), scale=metric(name).scale, decimals=metric(name).decimals)


def by_method(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """Group records by method and post-hoc method: no post-hoc method first, methods in the given order."""
    posthocs = list(dict.fromkeys(one.posthoc for one in records))
    by_posthoc = sorted(records, key=lambda one: posthocs.index(one.posthoc))
    return grouped(by_posthoc, lambda one: (one.method, one.posthoc))


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by a key; groups and items keep their order."""
    groups: dict[K, list[T]] = {}
    for one in items:
        groups.setdefault(key(one), []).append(one)
    return groups


def _hidden_first(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the titles of columns that a narrow terminal hides, the least important first."""
    order = sorted(columns, key=lambda name: (-metric(name).level, name != "aece", name != "nll"))
    return tuple(metric(name).title for name in order if metric(name).level > 1 or name in ("aece", "nll"))


def _titles(columns: Iterable[str]) -> list[str]:
    """Return the titles of the columns; the ECE has further columns for its estimate, interval and floor."""
    worth = ("debiased", "95 % interval", "noise floor")
    return [title for name in columns for title in (metric(name).title, *(worth if name == "ece" else ()))]


def _cells(columns: Iterable[str], result: Result) -> list[str]:
    """Return the cells for the columns of `_titles`."""
    cells = []
    for name in columns:
        shown = metric(name)
        cells.append(shown.show(result.get(name)))
        if name == "ece":
            ends = _range(name, result.estimates.get(name))
            cells += [shown.show(result.debiased.get(name)), ends, shown.show(result.get("ece_floor"))]
    return cells


def _p(p: float | None) -> str:
    return show_p(p).removeprefix("= ")


def _range(name: str, found: Estimate | Floor | Difference | SeedDifference | None) -> str:
    """Return the ends of an interval; empty if there is none."""
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{metric(name).show(found.low)} .. {metric(name).show(found.high)}"


def _refuse_mixed(records: Sequence[Record]) -> None:
    for one in records[1:]:
        for name in sorted({*records[0].protocol, *one.protocol}):
            mine, theirs = (record.protocol.get(name) for record in (records[0], one))
            if mine != theirs:
                raise InputError(
                    f"{records[0].method} and {one.method} cannot be in one table: {name} is {mine!r} for one, "
                    f"{theirs!r} for the other; choose the rows of one protocol"
                )
