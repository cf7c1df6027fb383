"""Tables of short texts: plain text for a terminal, Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import html
import io
import re
import shutil
import statistics
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from acls.errors import InputError, suggest

Mark = Literal["best", "second"]
FORMS = ("text", "markdown", "latex", "csv", "html")
"""The formats of a table, each the name of the method that writes it."""

_SIGNS = {"best": "*", "second": "'"}
_LATEX = str.maketrans({
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "−": "$-$", "≈": r"$\approx$", "→": r"$\to$",
    "λ": r"$\lambda$",
})  # fmt: skip
"""Of all characters that have a special meaning in LaTeX."""


@dataclass
class Table:
    """A header and rows of cells; by default the first column contains names, and the others right-aligned numbers.

    ``align`` changes this, with one letter per column from the left: "ll" for two columns of names. Cells can have
    marks: ``table.marks[row, column] = "best"`` is shown in bold and "second" is underlined, as in papers. In plain
    text the marks are ``*`` and ``'``. CSV has no marks.

    >>> print(Table(["net", "ECE %"], [["resnet20", "5.32"], ["resnet110", "12.10"]]).text())
    net        ECE %
    resnet20    5.32
    resnet110  12.10
    """

    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    align: str = "l"
    marks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    """By row and column, both from 0."""
    optional: Sequence[str] = ()
    """Titles of columns that are hidden, in this order, if plain text is too wide for the terminal."""

    def add(self, *cells: str) -> None:
        """Append a row; it may be shorter than the header."""
        self.rows.append(cells)

    def show(self, form: str) -> str:
        """Return the table in a format: text, markdown, latex, csv or html."""
        if form not in FORMS:
            raise InputError(f"there is no table format {form!r}{suggest(form, FORMS)}")
        return str(getattr(self, form)())

    def text(self, width: int | None = None) -> str:
        """Return aligned plain text; optional columns are hidden if the table is wider than ``width``."""
        marked = {column for _, column in self.marks}
        lines = [
            # A column with marks reserves space for the sign beside every number, so that the digits are aligned.
            [f"{cell}{_SIGNS.get(mark, ' ')}" if column in marked else cell for column, (cell, mark) in enumerate(line)]
            for line in self._cells()
        ]
        sizes = [max(map(len, column)) for column in zip(*lines, strict=True)]
        whole = "\n".join(
            "  ".join(
                cell.ljust(size) if side == "l" else cell.rjust(size)
                for side, cell, size in zip(self._sides(), line, sizes, strict=True)
            ).rstrip()
            for line in lines
        )
        if width is None or max(map(len, whole.splitlines())) <= width:
            return whole
        hidden = next((title for title in self.optional if title in self.header), None)
        shown = [column for column, title in enumerate(self.header) if title != hidden]
        return whole if hidden is None else self._only(shown).text(width)

    def fitted(self, width: int) -> str:
        """Return the table as plain text, or as one paragraph per row if it is wider than ``width``."""
        text = self.text(width)
        if max(map(len, text.splitlines())) <= width:
            return text
        rows = ([f"{title}: {cell}" if title else cell for title, cell in zip(self.header, row, strict=False) if cell]
                for row in self.rows)  # fmt: skip
        return "\n".join(paragraph("; ".join(row)) for row in rows)

    def filled(self) -> Table:
        """Return the table without the columns that are empty in every row."""
        filled = [k for k in range(len(self.header)) if any("".join(row[k : k + 1]) for row in self.rows)]
        return self._only(filled) if self.rows else self

    def _only(self, columns: Sequence[int]) -> Table:
        lines: list[Sequence[str]] = [[line[k] for k in columns if k < len(line)] for line in (self.header, *self.rows)]
        marks = {(row, columns.index(k)): mark for (row, k), mark in self.marks.items() if k in columns}
        return Table(lines[0], lines[1:], "".join(self._sides()[k] for k in columns), marks, self.optional)

    def markdown(self) -> str:
        """Return a GitHub-flavoured Markdown table."""
        header, *rows = self._marked("**{}**", "<u>{}</u>", lambda cell: re.sub(r"([|<])", r"\\\1", cell))
        rule = ["---" if side == "l" else "---:" for side in self._sides()]
        return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])

    def latex(self) -> str:
        """Return a LaTeX tabular for the package booktabs, with the best in bold and the second underlined."""
        marked = self._marked(r"\textbf{{{}}}", r"\underline{{{}}}", lambda cell: cell.translate(_LATEX))
        header, *rows = (" & ".join(line) + r" \\" for line in marked)
        lines = [rf"\begin{{tabular}}{{{self._sides()}}}", r"\toprule", header, r"\midrule", *rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def csv(self) -> str:
        """Return comma-separated values, quoted where needed."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([cell for cell, _ in line] for line in self._cells())
        return text.getvalue().rstrip("\n")

    def html(self) -> str:
        """Return an HTML table; all text is escaped, so that names from files are never read as HTML."""
        sides = [' class="name"' if side == "l" else "" for side in self._sides()]

        def line(cells: Sequence[str], start: str, end: str) -> str:
            return "".join(f"<{start}{side}>{cell}</{end}>" for side, cell in zip(sides, cells, strict=True))

        header, *rows = self._marked("<strong>{}</strong>", "<u>{}</u>", html.escape)
        head = line(header, 'th scope="col"', "th")
        body = "\n".join(f"<tr>{line(row, 'td', 'td')}</tr>" for row in rows)
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"

    def _marked(self, best: str, second: str, escape: Callable[[str], str]) -> list[list[str]]:
        """Return the escaped and marked cells of every line, the header first."""
        wrap = {"best": best, "second": second, "": "{}"}
        return [[wrap[mark].format(escape(cell)) for cell, mark in line] for line in self._cells()]

    def _sides(self) -> str:
        return self.align.ljust(len(self.header), "r")

    def _cells(self) -> list[list[tuple[str, Mark | Literal[""]]]]:
        """Return every line, the header first, as texts with marks, padded to the length of the header."""
        full = ([*row, *[""] * (len(self.header) - len(row))] for row in (self.header, *self.rows))
        return [  # the header, which has no marks, is line -1
            [(cell, self.marks.get((number, column), "")) for column, cell in enumerate(line)]
            for number, line in enumerate(full, -1)
        ]


def percent(fraction: float) -> str:
    """Format a fraction as percent with two decimals, as in papers.

    >>> percent(0.05321)
    '5.32'
    """
    return f"{100 * fraction:.2f}"


def spread(values: Sequence[float], *, scale: float = 1.0, decimals: int = 2) -> str:
    """Format the mean and standard deviation over runs; the latter uses n - 1 and needs at least two runs.

    >>> spread([0.05, 0.06, 0.07], scale=100), spread([0.05], scale=100), spread([])
    ('6.00 ± 1.00', '5.00', '')
    """
    if not values:
        return ""
    mean = f"{scale * statistics.fmean(values):.{decimals}f}"
    return mean if len(values) == 1 else f"{mean} ± {scale * statistics.stdev(values):.{decimals}f}"


def width() -> int:
    """Return the number of columns of the terminal; 80 if there is no terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def paragraph(text: str) -> str:
    """Break a sentence into lines of readable length; all lines after the first are indented."""
    joined = re.sub(r"(?<=\d) %", "\u00a0%", text)  # a number and its % stay on one line
    lines = textwrap.fill(
        joined, min(width(), 110), subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )
    return lines.replace("\u00a0", " ")
