"""Losses written as text, as one types them: ``CE, ACLS(margin=6), MDCA(base=Focal(gamma=1))``."""

from __future__ import annotations

import ast
from typing import Any

from acls.errors import InputError
from acls.losses import REGISTRY, Loss, make_loss

GROUPS = {
    "paper": ("CE", "LabelSmoothing", "Focal", "FLSD", "ECP", "MMCE", "MDCA", "CPC", "MbLS", "CRL", "ACLS"),
    "all": tuple(REGISTRY),
}


def parse_losses(text: str) -> list[Loss]:
    """Return the losses that a comma-separated text names; ``paper`` and ``all`` stand for those of that group.

    A word among the fields is text, with or without quotes, so that what a loss prints can be pasted back.

    >>> parse_losses("CE, ACLS(form=released)")
    [CE(), ACLS(form='released')]
    """
    try:
        entries = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError:
        entries = None
    if not isinstance(entries, ast.List) or not entries.elts:
        raise InputError(f"{text!r} names no losses: write them as in CE, ACLS(margin=6, form=released)")
    losses: list[Loss] = []
    for entry in entries.elts:
        if isinstance(entry, ast.Name) and entry.id in GROUPS:
            losses += [make_loss(name) for name in GROUPS[entry.id]]
        else:
            losses.append(_loss(entry, text))
    return losses


def _loss(entry: ast.expr, text: str) -> Loss:
    if isinstance(entry, ast.Name):
        return make_loss(entry.id)
    if isinstance(entry, ast.Call) and isinstance(entry.func, ast.Name) and not entry.args:
        fields = {keyword.arg or "**": _value(keyword.value, text) for keyword in entry.keywords}
        try:
            return make_loss(entry.func.id, **fields)
        except TypeError as error:  # an unknown field
            raise InputError(str(error)) from None
    raise InputError(f"{ast.unparse(entry)!r} in {text!r} is no loss: write one as in ACLS(margin=6, form=released)")


def _value(value: ast.expr, text: str) -> Any:
    if isinstance(value, ast.Name):
        return make_loss(value.id) if value.id in REGISTRY else value.id
    if isinstance(value, ast.Call):
        return _loss(value, text)
    try:
        return ast.literal_eval(ast.unparse(value))
    except ValueError:
        # A hyphenated word, such as printed-loss, parses as a difference of names.
        return ast.unparse(value).replace(" - ", "-")
