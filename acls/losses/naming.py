"""Losses written as text, as one types them: ``CE, ACLS(margin=6), MDCA(base=Focal(gamma=1))``."""

from __future__ import annotations

from acls.calls import Call, parse_calls
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
    return [build(call) for call in name_losses(text)]


def name_losses(text: str) -> list[Call]:
    """The same, but as names with the fields that were given, for a recipe to add its own."""
    calls = []
    for call in parse_calls(text, "losses", "CE, ACLS(margin=6, form=released)"):
        calls += [Call(name) for name in GROUPS[call.name]] if call.name in GROUPS and not call.fields else [call]
    return calls


def build(call: Call) -> Loss:
    """Make the loss; a field that names a loss, as in ``MDCA(base=Focal)``, holds that loss."""
    fields = {}
    for name, value in call.fields.items():
        inner = Call(value) if isinstance(value, str) and value in REGISTRY else value
        fields[name] = build(inner) if isinstance(inner, Call) else inner
    try:
        return make_loss(call.name, **fields)
    except TypeError as error:  # an unknown field
        raise InputError(str(error)) from None
