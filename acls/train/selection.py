"""Which epoch is the best: by a number of the validation part whose better end is known."""

from __future__ import annotations

import math
from collections.abc import Mapping

from acls.errors import InputError, suggest
from acls.metrics.catalogue import metric, selectable


def check_select(name: str, *, segmentation: bool) -> None:
    """Raise for a number that cannot choose the best checkpoint."""
    known = selectable(maps=segmentation)
    if name not in known:
        raise InputError(f"the best checkpoint cannot be chosen by {name!r}{suggest(name, known)}")


def is_better(name: str, row: Mapping[str, float], best: float | None) -> bool:
    """Whether an epoch beats the best so far, strictly: of equals the first is kept."""
    if f"val/{name}" not in row:
        raise InputError(f"the best checkpoint cannot be chosen by {name!r}, which this data does not have")
    if best is None or math.isnan(best):
        return True
    value = row[f"val/{name}"]
    return metric(name).sign * value < metric(name).sign * best
