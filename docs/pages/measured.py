"""What a method did on real data: its rows of the tables in docs/results."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from .text import table

_RESULTS = Path(__file__).parents[1] / "results"
_NEEDED = ("method", "post-hoc", "accuracy %", "ECE %", "seeds", "n")


def measured(name: str) -> str:
    """A table of a method beside cross-entropy, as it is and after temperature scaling; empty where it was not run."""
    rows = []
    for page, title, found in _tables():
        for method in dict.fromkeys(row["method"] for row in found):
            if method == name or (method.startswith(f"{name}(") and method.endswith(")")):
                ours = _pair(found, method)
                if ours is not None:
                    rows.append((f"[{title}](../results/{page})", f"`{method}`", *ours))
        if rows and rows[-1][0].startswith(f"[{title}]") and name != "CE":
            rows.append(("", "`CE`", *(_pair(found, "CE") or ("",) * 5)))
    if not rows:
        return ""
    header = ["data", "method", "accuracy %", "ECE %", "ECE % after temperature scaling", "seeds", "n"]
    return (
        table(header, rows)
        + "\n\nMean ± standard deviation over seeds, small networks. The linked pages have the commands."
    )


def _pair(rows: list[dict[str, str]], method: str) -> tuple[str, ...] | None:
    plain = next((row for row in rows if row["method"] == method and row["post-hoc"] == "none"), None)
    if plain is None:
        return None
    scaled = next((row["ECE %"] for row in rows if row["method"] == method and row["post-hoc"] == "Temperature"), "")
    cells = (plain["accuracy %"], plain["ECE %"], scaled, plain["seeds"], plain["n"])
    return tuple(cell.replace(" ± ", "\u00a0±\u00a0") for cell in cells)


@functools.cache
def _tables() -> list[tuple[str, str, list[dict[str, str]]]]:
    """File, title and rows of each page's first table of methods."""
    found = []
    for path in sorted(_RESULTS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        title = re.match(r"# (.+)", text)
        for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
            head, _, *rows = (
                [cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in block.strip().splitlines()
            )
            if title and set(_NEEDED) <= set(head):
                found.append((path.name, title[1], [dict(zip(head, row, strict=False)) for row in rows]))
                break
    return found
