"""Modules that are dataclasses: their fields are their settings, and the only place where a default stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from typing_extensions import dataclass_transform

from acls.errors import InputError, suggest
from acls.options import check_range, option, to_plain
from acls.spec import check_field, field_types


class FieldError(InputError, TypeError):
    """A field that a class does not have, or one that is not given by name."""


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(dataclasses.field, option))
class Configured(nn.Module):
    """An `nn.Module` whose subclasses are keyword-only dataclasses: they print, copy and record themselves.

    Give a field that holds a module or a tensor a ``default_factory``: a plain default is a class attribute, which
    would hide the submodule or buffer of that name.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(eq=False, kw_only=True, repr=False)(cls)

    def __new__(cls, *args: Any, **fields: Any) -> Any:
        known = field_types(cls)
        ranges = {one.name: one.metadata for one in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name, value in fields.items():
            if name not in known:
                raise FieldError(f"{cls.__name__} has no field {name!r}{suggest(name, known)}")
            check_field(cls.__name__, name, value, known[name])
            check_range(cls.__name__, name, value, ranges[name])
        if args:
            raise FieldError(f"{cls.__name__} takes its fields by name: {cls.__name__}({next(iter(known), '')}=...)")
        module = super().__new__(cls)
        # The generated __init__ assigns the fields, which nn.Module allows only once it is set up itself.
        nn.Module.__init__(module)
        return module

    @classmethod
    def upgraded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that an earlier version recorded as this version names them."""
        return fields

    def settings(self) -> dict[str, Any]:
        """Return the name and all fields as plain values that JSON can hold: what `acls.spec.build` makes it from."""
        return {"name": type(self).__name__} | {field.name: to_plain(_value(self, field)) for field in _fields(self)}

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults, as one would write them."""
        shown = [f"{f.name}={_show(_value(self, f))}" for f in _fields(self) if not _is_default(self, f)]
        return f"{type(self).__name__}({', '.join(shown)})"


def _fields(module: Configured) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(module) if field.init]  # type: ignore[arg-type]


def _value(module: Configured, field: dataclasses.Field[Any]) -> Any:
    """The field's value; a whole number as a float where the field is one, so that margin=6 and 6.0 read the same."""
    value = getattr(module, field.name)
    return float(value) if type(value) is int and field.type == "float" else value


def _is_default(module: Configured, field: dataclasses.Field[Any]) -> bool:
    value = getattr(module, field.name)
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    if isinstance(value, Tensor | Configured):
        return isinstance(value, Configured) and repr(value) == repr(default)
    return bool(value == default)


def _show(value: Any) -> str:
    return str(value.tolist()) if isinstance(value, Tensor) else repr(value)


@contextmanager
def evaluating(model: nn.Module, *, training: Callable[[nn.Module], bool] = lambda _: False) -> Iterator[None]:
    """Put all parts of a model in eval mode but those that ``training`` chooses, and back in the end."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = training(module)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
