"""Thin adapters to other libraries, each an optional extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from acls.errors import MissingExtra, missing
from acls.vision import torchvision


@contextmanager
def importing(package: str, *, extra: str, vision: bool = True) -> Iterator[None]:
    """Import a library in this block; if it is missing, `MissingExtra` says how to install it.

    ``vision``: the library imports torchvision if that is installed, so our guarded import runs first.
    """
    if vision:
        with suppress(MissingExtra):
            torchvision()
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        raise missing(package, extra) from error
