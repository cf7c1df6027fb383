"""The table of metrics, from the catalogue itself."""

from __future__ import annotations

from acls.metrics.catalogue import CATALOGUE

from . import text
from .text import code, escape

PLACE = "<!-- metrics -->"


def table() -> str:
    """A row per metric: its name in JSON, what it is, and which end is better."""
    rows = [(escape(one.title), code(one.name), escape(one.about), one.better) for one in CATALOGUE.values()]
    return text.table(["metric", "name", "what it is", "better"], rows)
