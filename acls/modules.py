"""Modules that are dataclasses: their fields are their settings, and each default is written only there."""

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
    """A class does not have the given field, or a field was not passed by name."""


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(dataclasses.field, option))
class Configured(nn.Module):
    """An `nn.Module` whose subclasses are keyword-only dataclasses, which can print, copy and record their settings.

    Use ``default_factory`` for a field that holds a module or a tensor. A plain default is a class attribute, which
    would hide the submodule or buffer with the same name.
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
            raise FieldError(
                f"{cls.__name__} takes only keyword arguments: {cls.__name__}({next(iter(known), '')}=...)"
            )
        module = super().__new__(cls)
        # The generated __init__ assigns the fields. nn.Module allows this only after its own __init__ has run.
        nn.Module.__init__(module)
        return module

    def settings(self) -> dict[str, Any]:
        """Return the name and all fields as values that JSON can hold; `acls.spec.build` makes an equal object."""
        return {"name": type(self).__name__} | {field.name: to_plain(_value(self, field)) for field in _fields(self)}

    def __repr__(self) -> str:
        """Return the call that makes this object, with the fields that differ from their defaults."""
        shown = [f"{f.name}={_show(_value(self, f))}" for f in _fields(self) if not _is_default(self, f)]
        return f"{type(self).__name__}({', '.join(shown)})"


def _fields(module: Configured) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(module) if field.init]  # type: ignore[arg-type]


def _value(module: Configured, field: dataclasses.Field[Any]) -> Any:
    """Return the value of a field; an int becomes a float in a float field, so that margin=6 and 6.0 print the same."""
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
    """Put all modules of a model in eval mode, except those that ``training`` selects; restore the modes at the end."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = training(module)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
