"""Numbers from the paper (Park et al., ICCV 2023, and supplement); ``published.json`` has the tables, in percent."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, NamedTuple


class Published(NamedTuple):
    """The printed numbers of a row; None where the paper prints no number."""

    accuracy: float | None
    """Top-1 accuracy, or the mean intersection over union for segmentation."""
    ece: float | None
    aece: float | None


_DATA: dict[str, Any] = json.loads((files("acls.reproduce") / "published.json").read_text(encoding="utf-8"))


def _rows(table: dict[str, list[float | None]]) -> dict[str, Published]:
    return {row: Published(*numbers) for row, numbers in table.items()}


def _table(name: str) -> dict[str, dict[str, Published]]:
    """Return a table by recipe and row."""
    return {recipe: _rows(table) for recipe, table in _DATA[name].items()}


TABLE_1, TABLE_3, TABLE_4, TABLE_5, TABLE_6, TABLE_A, TABLE_B = (_table(f"TABLE_{name}") for name in "13456AB")
"""Table A has the validation split, where the paper's run at 0, 0.015 did not converge; table B has 15 bins."""
LAMBDA_1 = (0.0, 0.05, 0.1, 0.15)
LAMBDA_2 = (0.0, 0.005, 0.01, 0.015)
TABLE_B_10 = _rows(_DATA["TABLE_B_10"])
"""Table B with 10 bins, the only ones that Patra et al. print."""
TEMPERATURES: dict[str, float] = _DATA["TEMPERATURES"]
"""Temperatures of CE + TS in the footnote of Table 3: from a grid of step 0.1, chosen by ECE."""
TABLE_2: dict[str, list[str]] = _DATA["TABLE_2"]
"""Printed entries by method: f and C at the predicted class, f and C at the other classes."""
BATCH_RULES: dict[str, list[str]] = _DATA["BATCH_RULES"]
"""Entries for the two methods whose gradient depends on the batch, so that they have no `Rule`."""
ALTERED_SHARE = 0.29
"""Percent of samples whose prediction ACLS changed after a step, in the last epoch on Tiny-ImageNet."""
GAMMA_THREE_SHARE = 95.0
"""Percent of Tiny-ImageNet samples whose gamma is 3 in FLSD."""
INACTIVE_SHARE = {"ACLS, ranking": 85.0, "ACLS, margin": 5.0}
"""Percent of the samples whose regulariser is 0."""
