"""Tables of short texts, as plain text for a terminal and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Table:
    """A header and rows of cells; the first column is names, the others are numbers and stand at the right.

    ``align`` says otherwise, a letter a column from the left: "ll" for two columns of names.

    >>> print(Table(["net", "ECE %"], [["resnet20", "5.32"], ["resnet110", "12.10"]]).text())
    net        ECE %
    resnet20    5.32
    resnet110  12.10
    """

    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    align: str = "l"

    def add(self, *cells: str) -> None:
        """Append a row; it may be shorter than the header."""
        self.rows.append(cells)

    def text(self) -> str:
        """Columns two spaces apart, as wide as their widest cell."""
        lines = self._full_rows()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if side == "l" else cell.rjust(width)
                for side, cell, width in zip(self._sides(), line, widths, strict=True)
            ).rstrip()
            for line in lines
        )

    def markdown(self) -> str:
        """A GitHub-flavoured Markdown table."""
        header, *rows = ([cell.replace("|", "\\|") for cell in line] for line in self._full_rows())
        rule = ["---" if side == "l" else "---:" for side in self._sides()]
        return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])

    def _sides(self) -> str:
        return self.align.ljust(len(self.header), "r")

    def _full_rows(self) -> list[list[str]]:
        n = len(self.header)
        return [list(self.header)] + [[*row, *[""] * (n - len(row))] for row in self.rows]


def percent(fraction: float) -> str:
    """A fraction as percent with two decimals, as papers print them.

    >>> percent(0.05321)
    '5.32'
    """
    return f"{100 * fraction:.2f}"


def paragraph(text: str) -> str:
    """A sentence broken into lines of a readable length, the later ones indented."""
    return textwrap.fill(text, 110, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
