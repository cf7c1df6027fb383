"""From docstrings and fields to Markdown."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

_CODE = re.compile(r"``(.+?)``|`(.+?)`", flags=re.S)
# A letter, or a word that formulas put something under: z_y, k_{i+1}, sum_k. Names such as pos_lambda stay names.
_BELOW = re.compile(r"\b([A-Za-z]'?|sum|min|max|mean|Huber)_(?:\{(.+?)\}|([a-zŷ]{1,2}|alpha)\b)")
_ABOVE = re.compile(r"\^(\w+|\|\w+\|)")
_SIGNS = {"sum": "Σ"}


def prose(documented: type) -> str:
    """A class's docstring as Markdown: formulas keep their letters, doctests become code."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(documented.__doc__ or ""))
    return "\n\n".join(f"```pycon\n{block}\n```" if block.startswith(">>>") else escape(block) for block in blocks)


def escape(text: str) -> str:
    """Escape what Markdown would take for markup, and leave code as code."""
    parts, at = [], 0
    for found in _CODE.finditer(text):
        parts += [_escape_plain(text[at : found.start()]), f"`{found[1] or found[2]}`"]
        at = found.end()
    return "".join([*parts, _escape_plain(text[at:])])


def _escape_plain(text: str) -> str:
    """Escape text without code; what is below or above in a formula becomes so."""
    text = _BELOW.sub(lambda found: f"{_SIGNS.get(found[1], found[1])}\0{found[2] or found[3]}\1", text)
    text = re.sub(r"([*_\[\]<>|#{}])", r"\\\1", _ABOVE.sub("\2\\1\3", text))
    for sign, tag in zip("\0\1\2\3", ("<sub>", "</sub>", "<sup>", "</sup>"), strict=True):
        text = text.replace(sign, tag)
    return text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are Markdown already; a bar within code is escaped by `code`."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """Text as code within a table's cell."""
    return "`" + text.replace("|", "\\|") + "`"


def fields_table(kind: type, besides: type) -> str:
    """The fields of a dataclass that its base ``besides`` does not have, with types and defaults; empty for none."""
    common = {field.name for field in dataclasses.fields(besides)}
    own = [field for field in dataclasses.fields(kind) if field.init and field.name not in common]
    if not own:
        return ""
    rows = [(code(field.name), code(str(field.type)), code(_default(field))) for field in own]
    return table(["field", "type", "default"], rows)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return repr(field.default)
