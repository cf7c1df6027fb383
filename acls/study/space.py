"""A search space as one types it: ``lambda1=0:0.15:0.05, margin=6|8|10, optim.lr=0.01:0.3:log``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from acls.errors import InputError

EXAMPLE = "lambda1=0:0.15:0.05, margin=6|8|10, optim.lr=0.01:0.3:log"


@dataclass(frozen=True)
class Axis:
    """What one setting may be: some values, or a range."""

    name: str
    values: tuple[Any, ...] = ()
    """Empty for a range."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False

    def suggest(self, trial: Any) -> Any:
        """A value from an Optuna trial."""
        if self.values:
            return trial.suggest_categorical(self.name, list(self.values))
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)


def parse_space(text: str) -> list[Axis]:
    """Read settings with what they may be: ``low:high:step`` with both ends, ``low:high``, ``low:high:log``, ``a|b``.

    >>> parse_space("lambda1=0:0.15:0.05")[0].values
    (0.0, 0.05, 0.1, 0.15)
    """
    axes = [_axis(part.strip()) for part in text.split(",") if part.strip()]
    if not axes:
        raise InputError(f"the space is empty: write it as in {EXAMPLE}")
    if len({axis.name for axis in axes}) < len(axes):
        raise InputError(f"{text!r} names a setting twice")
    return axes


def grid(axes: list[Axis]) -> Iterator[dict[str, Any]]:
    """Every combination of the values; a range has no end of them."""
    for axis in axes:
        if not axis.values:
            raise InputError(f"a grid needs steps, but {axis.name} is a range: write low:high:step, or --sampler tpe")
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip((axis.name for axis in axes), values, strict=True))


def show(params: Mapping[str, Any]) -> str:
    """A point of the space as one would write it."""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in params.items()
    )


def _axis(text: str) -> Axis:
    name, equals, told = (part.strip() for part in text.partition("="))
    if not equals or not name or not told:
        raise InputError(f"{text!r} is no setting with its values: write it as in {EXAMPLE}")
    if ":" not in told:
        return Axis(name, tuple(_value(part.strip()) for part in told.split("|")))
    ends = told.split(":")
    try:
        low, high = float(ends[0]), float(ends[1])
        log = ends[2:] == ["log"]
        step = None if log or len(ends) == 2 else float(ends[2])
    except ValueError:
        raise InputError(f"{text!r} is no range: write low:high:step, low:high or low:high:log") from None
    if len(ends) > 3 or not low < high or (step is not None and step <= 0) or (log and low <= 0):
        raise InputError(f"{text!r} is no range: low < high, a step above 0, and above 0 altogether for log")
    if step is None:
        return Axis(name, low=low, high=high, log=log)
    count = math.floor((high - low) / step + 1e-9) + 1
    # Rounded, so that 3 * 0.05 is 0.15, as it was meant.
    return Axis(name, tuple(round(low + number * step, 12) for number in range(count)))


def _value(text: str) -> Any:
    """A number where it is one, else the word."""
    try:
        number = float(text)
    except ValueError:
        return text
    return int(text) if text.lstrip("+-").isdigit() else number
