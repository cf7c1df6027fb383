"""Methods written as text, as one types them: ``CE, ACLS(margin=6), MDCA(base=Focal(gamma=1))``. Needs no torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from acls.errors import InputError


@dataclass(frozen=True)
class Call:
    """The name of a method with the fields that were given; a field that is a method itself is a `Call`."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Name and fields as one dictionary, for JSON and YAML."""
        fields = {name: value.plain() if isinstance(value, Call) else value for name, value in self.fields.items()}
        return {"name": self.name, **fields}


_WORDS = {"true": True, "false": False, "none": None}
"""As they are written in JSON and YAML, and by Python itself."""


def parse_calls(text: str, what: str, example: str) -> list[Call]:
    """Read names with fields, separated by commas.

    A word among the fields is text, with or without quotes, so that what a method prints can be pasted back.

    >>> parse_calls("CE, ACLS(form=released)", "losses", "CE")
    [Call(name='CE', fields={}), Call(name='ACLS', fields={'form': 'released'})]
    """
    try:
        entries = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError:
        entries = None
    if not isinstance(entries, ast.List) or not entries.elts:
        raise InputError(f"{text!r} names no {what}: write them as in {example}")
    return [_call(entry, text, example) for entry in entries.elts]


def _call(entry: ast.expr, text: str, example: str) -> Call:
    if isinstance(entry, ast.Name):
        return Call(entry.id)
    if isinstance(entry, ast.Call) and isinstance(entry.func, ast.Name) and not entry.args:
        fields = {keyword.arg or "**": _value(keyword.value, text, example) for keyword in entry.keywords}
        return Call(entry.func.id, fields)
    raise InputError(f"{ast.unparse(entry)!r} in {text!r} is no method: write them as in {example}")


def _value(value: ast.expr, text: str, example: str) -> Any:
    if isinstance(value, ast.Name):
        return _WORDS.get(value.id.lower(), value.id)
    if isinstance(value, ast.Call):
        return _call(value, text, example)
    try:
        return ast.literal_eval(ast.unparse(value))
    except ValueError:
        # A hyphenated word, such as printed-loss, parses as a difference of names.
        return ast.unparse(value).replace(" - ", "-")
