"""The table of a study: a line a method, with mean and spread over its seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from acls.errors import InputError
from acls.metrics.catalogue import metric, names
from acls.report.tables import Mark, Table, spread
from acls.study.ranking import Ranked

COLUMNS = tuple(names(1))
"""Metrics that a table shows unless told otherwise."""
RANKED = tuple(names(2))
"""Metrics by which methods are ranked, in the terminal and on the page: Holm's correction is for all that are ranked
together, so each list has p-values of its own."""


Marks = Mapping[tuple[str, str, str], Mark]
"""By method, post-hoc method and metric."""


class Result(Protocol):
    """What a table needs of a stored row; `acls.study.store.Row` is one."""

    @property
    def method(self) -> str: ...
    @property
    def posthoc(self) -> str: ...
    @property
    def seed(self) -> Any: ...
    @property
    def n(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, Any]: ...
    @property
    def protocol(self) -> Mapping[str, Any]: ...


def results_table(
    rows: Sequence[Result],
    columns: Sequence[str] = COLUMNS,
    *,
    marks: Marks | None = None,
) -> Table:
    """A line a method and post-hoc method: mean ± standard deviation over seeds, how many seeds, and n.

    ``marks`` says by (method, posthoc, metric) what is best and second: whoever compared the methods knows which of
    the differences are more than chance, a table does not. Rows measured by different protocols are refused.
    """
    _refuse_mixed(rows)
    titles = [metric(name).title for name in columns]
    table = Table(["method", "post-hoc", *titles, "seeds", "n"], align="ll")
    for (method, posthoc), group in by_method(rows).items():
        cells = []
        for name in columns:
            values = [value for row in group if (value := number(row, name)) is not None]
            cells.append(spread(values, scale=metric(name).scale, decimals=metric(name).decimals))
        sizes = sorted({row.n for row in group})
        table.add(method, posthoc, *cells, str(len(group)), "-".join(map(str, {sizes[0]: 0, sizes[-1]: 0})))
        for column, name in enumerate(columns, 2):
            mark = (marks or {}).get((method, posthoc, name))
            if mark is not None:
                table.marks[len(table.rows) - 1, column] = mark
    return table


def marks_of(ranked: Iterable[Ranked]) -> dict[tuple[str, str, str], Mark]:
    """The marks of a table: best and second where the best differs from the second by more than chance, else none."""
    marks: dict[tuple[str, str, str], Mark] = {}
    for one in ranked:
        if one.significant:
            marks[one.best, one.posthoc, one.metric] = "best"
            marks[one.next, one.posthoc, one.metric] = "second"
    return marks


def signs(seeds: int) -> str:
    """What the marks of a table in plain text mean, where methods have so many seeds."""
    both = " and from seed to seed (paired t-test)" if seeds > 1 else ""
    return (
        "* best among those after the same post-hoc method, and different from the next, marked ', beyond chance: on "
        f"the same test samples (permutation test){both}, p below 0.05 after Holm's correction for all that was tested."
    )


def by_method(rows: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """The rows of each method and post-hoc method, in the order in which these first come."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for row in rows:
        groups.setdefault((row.method, row.posthoc), []).append(row)
    return groups


def number(row: Result, name: str) -> float | None:
    """The value of a metric, or None where the row has none; ``ece_floor`` is the noise floor of the ECE."""
    found = row.metrics.get(name.removesuffix("_floor"))
    value = found["floor" if name.endswith("_floor") else "value"] if isinstance(found, Mapping) else found
    return None if value is None else float(value)


def _refuse_mixed(rows: Sequence[Result]) -> None:
    for row in rows[1:]:
        for name in sorted({*rows[0].protocol, *row.protocol}):
            mine, theirs = rows[0].protocol.get(name), row.protocol.get(name)
            if mine != theirs:
                raise InputError(
                    f"{rows[0].method} and {row.method} cannot stand in one table: {name} is {mine!r} for one, "
                    f"{theirs!r} for the other; choose the rows of one protocol"
                )
