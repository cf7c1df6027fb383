"""When to use a method, its formula, and what it did on real data: how its page opens."""

from __future__ import annotations

import re
from pathlib import Path

from .measured import measured

_FILE = Path(__file__).with_suffix(".md")


def when() -> dict[str, str]:
    """The text on each method by its name."""
    parts = re.split(r"^## (\w+)\n", _FILE.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def opening(name: str) -> list[str]:
    """The first sections of a method's page; those that have nothing to say are left out."""
    parts = re.fullmatch(r"(\$\$.+?\$\$)?\s*(.*)", when().get(name, ""), flags=re.S)
    assert parts is not None
    sections = [parts[2], parts[1] or "", f"## On real data\n\n{real}" if (real := measured(name)) else ""]
    return [f"{section}\n" for section in sections if section]
