"""When to use a method: the sections of when.md by class name."""

from __future__ import annotations

import re
from pathlib import Path

_FILE = Path(__file__).with_suffix(".md")


def when() -> dict[str, str]:
    """The text on each method by its name."""
    parts = re.split(r"^## (\w+)\n", _FILE.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
