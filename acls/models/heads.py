"""Last layers, with dropout before them."""

from __future__ import annotations

from typing import Any

from torch import nn

from acls.errors import InputError
from acls.models import ModelOptions
from acls.vision import timm


def with_dropout(head: nn.Module, rate: float) -> nn.Module:
    """The head alone, or with dropout before it."""
    return nn.Sequential(nn.Dropout(rate), head) if rate else head


class WithHead(nn.Sequential):
    """An encoder, dropout and a last layer."""

    def __init__(self, encoder: nn.Module, head: nn.Module, dropout: float) -> None:
        super().__init__(encoder, nn.Dropout(dropout), head)

    @property
    def encoder(self) -> nn.Module:
        """What weights of a file are for."""
        return self[0]


def timm_model(name: str, n_classes: int, channels: int, options: ModelOptions) -> nn.Module:
    """Any of timm's networks, with a head for our classes.

    With dropout the head is ours: many of timm's networks drop out by a function, which MC dropout cannot switch on.
    """
    classes = 0 if options.dropout else n_classes
    model = create(name, pretrained=options.pretrained, num_classes=classes, in_chans=channels)
    if options.dropout:
        return WithHead(model, nn.Linear(int(model.num_features), n_classes), options.dropout)  # type: ignore[arg-type]
    return model


def create(name: str, **settings: Any) -> nn.Module:
    """One of timm's networks, or a message with close names."""
    library = timm()
    if not library.is_model(name):
        close = library.list_models(f"*{name.split('.')[0].split('_')[0]}*")[:5]
        hint = f": there are {', '.join(close)}" if close else ""
        raise InputError(f"timm has no model {name!r}{hint}")
    model: nn.Module = library.create_model(name, **settings)
    return model
