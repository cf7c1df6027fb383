"""Which epoch is the best: by a number of the validation part whose better end is known."""

from __future__ import annotations

import math
from collections.abc import Mapping

from acls.errors import InputError, suggest

HIGHER_IS_BETTER = ("accuracy", "top5", "auroc")
OF_LABEL_MAPS = ("miou", "miou_foreground")
"""Higher is better; for segmentation only."""
LOWER_IS_BETTER = (
    "nll", "brier", "top_brier", "ece", "aece", "mce", "rmsce", "rmsce_debiased", "ks", "smece", "aurc",
    "overconfidence", "underconfidence", "ece_after_temperature",
)  # fmt: skip


def check_select(name: str, *, segmentation: bool) -> None:
    """Raise for a number that cannot choose the best checkpoint."""
    known = (*HIGHER_IS_BETTER, *(OF_LABEL_MAPS if segmentation else ()), *LOWER_IS_BETTER)
    if name not in known:
        raise InputError(f"the best checkpoint cannot be chosen by {name!r}{suggest(name, known)}")


def is_better(name: str, row: Mapping[str, float], best: float | None) -> bool:
    """Whether an epoch beats the best so far, strictly: of equals the first is kept."""
    if f"val/{name}" not in row:
        raise InputError(f"the best checkpoint cannot be chosen by {name!r}, which this data does not have")
    if best is None or math.isnan(best):
        return True
    value = row[f"val/{name}"]
    return value < best if name in LOWER_IS_BETTER else value > best
