"""The table of protocols, from the protocols themselves."""

from __future__ import annotations

from acls.metrics.protocols import PROTOCOLS

from . import text
from .text import code, escape

PLACE = "<!-- protocols -->"


def table() -> str:
    """One row per protocol: its name, its conventions, and why its numbers differ."""
    rows = []
    for one in PROTOCOLS.values():
        images = "pooled"
        if one.images:
            images = f"{one.images} images at a time" if one.images > 1 else "each image by itself"
            images += ", then averaged" + ("" if one.weighted else " with equal weights")
        without = "" if one.without is None else f", without class {one.without}"
        edges = "(lo, hi]" if one.closed == "right" else "[lo, hi)"
        rows.append((code(one.name), f"{one.bins}, {edges}", one.adaptive, images + without, escape(one.why)))
    return text.table(["protocol", "bins", "equal-mass bins", "samples", "how it differs"], rows)
