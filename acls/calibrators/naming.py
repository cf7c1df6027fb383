"""Calibrators written as text, as one types them: ``temperature, Vector(space=log_probs)``."""

from __future__ import annotations

from acls.calibrators import REGISTRY, Calibrator, make_calibrator
from acls.calls import Call, parse_calls
from acls.errors import InputError

EVERY = "all"
"""Stands for every calibrator that works on rows of logits."""


def parse_calibrators(text: str) -> list[Calibrator]:
    """Return the calibrators that a comma-separated text names, each once.

    >>> parse_calibrators("temperature, Vector(space=log_probs)")
    [Temperature(), Vector(space='log_probs')]
    """
    named: dict[str, Calibrator] = {}
    for call in parse_calls(text, "calibrators", "temperature, Vector(space=log_probs)"):
        every = call.name == EVERY and not call.fields
        for calibrator in [kind() for kind in REGISTRY.values() if kind.pointwise] if every else [build(call)]:
            named.setdefault(written(calibrator), calibrator)
    return list(named.values())


def build(call: Call) -> Calibrator:
    """Make the calibrator."""
    try:
        return make_calibrator(call.name, **call.fields)
    except TypeError as error:  # an unknown field
        raise InputError(str(error)) from None


def written(calibrator: Calibrator) -> str:
    """A calibrator as one would type it."""
    return repr(calibrator).removesuffix("()")
