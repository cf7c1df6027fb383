"""How results show themselves: a short repr, and what their command prints as HTML in a notebook."""

import importlib
import reprlib
import textwrap
from collections.abc import Iterable, Sized
from typing import Any

from acls.errors import require


class Shown:
    """Base class of results: dataclasses with ``repr=False``."""

    def __repr__(self) -> str:
        """Return the fields with short values, the lengths of collections and the shapes of tensors."""
        shown = ", ".join(filter(None, (_brief(name, value) for name, value in vars(self).items())))
        return f"{type(self).__name__}({textwrap.shorten(shown, 200, placeholder=' ...')})"

    def _repr_html_(self) -> str:
        return str(importlib.import_module("acls.report.texts").html(self))  # above this module


def frame(records: Iterable[Any]) -> Any:
    """Return a pandas DataFrame with a row per record, a dictionary or an object with fields."""
    rows = [one if isinstance(one, dict) else vars(one) for one in records]
    return require("pandas", extra="frames").DataFrame(rows)


def _brief(name: str, value: Any) -> str:
    if hasattr(value, "shape"):
        return f"{name} {tuple(value.shape)}"
    if isinstance(value, Sized) and not isinstance(value, str | Shown):
        return f"{len(value)} {name}" if len(value) else ""
    return "" if value in (None, "") else f"{name}={reprlib.repr(value)}"
