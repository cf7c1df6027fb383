"""Tally: sums over samples that can be merged over batches, processes and machines.

A metric that is a function of sums can be computed in parts: ``Bins.of(a) + Bins.of(b)`` is ``Bins.of(a and b)``.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from acls.arrays import ScoreKind, as_tensor, scored
from acls.distributed import all_reduce
from acls.errors import InputError, check_names
from acls.metrics.batch import Batch
from acls.shapes import IGNORE_INDEX
from acls.storage import load_tensors, save_tensors

TALLIES: dict[str, type[Tally]] = {}


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over samples. Fields that are tensors or tallies are added; all other fields are settings and must agree.

    Accumulators are int64 or float64. A subclass defines its fields and `count`, which returns the sums of one batch.
    Addition, reduction over processes, saving and loading follow from the fields.
    """

    whole: ClassVar[bool] = False
    """Whether the sums need the scores of every class. Triples (confidence, predicted, label) are then not enough."""

    def __init_subclass__(cls) -> None:
        if "count" in vars(cls):  # not what only others build upon
            TALLIES[cls.__name__] = cls

    @classmethod
    def count(cls, batch: Batch) -> Self:
        """Return the sums of one batch."""
        raise NotImplementedError

    def summary(self) -> dict[str, float]:
        """Return the metrics computed from the sums, by name."""
        raise NotImplementedError

    @classmethod
    def of(
        cls,
        scores: Any,
        target: Any,
        *,
        kind: ScoreKind | None = None,
        ignore_index: int = IGNORE_INDEX,
        sample_weight: Any = None,
        **settings: Any,
    ) -> Self:
        """Return the sums of scores ``(N, K, *D)`` with target ``(N, *D)``. ``settings`` are fields that are not sums.

        Arrays of any library are accepted. For two classes, scores ``(N,)`` of class 1 are enough. Without ``kind`` the
        scores are logits; scores that could be probabilities then raise an error. ``sample_weight`` is one number per
        sample. A sample of weight 2 counts as two samples. For fractional weights, only their ratios matter.
        """
        check_names(f"{cls.__name__}.of", settings, [*inspect.signature(cls.count).parameters, "kind", "sample_weight"])
        scores, target, known = scored(scores, target, kind)
        weight = None if sample_weight is None else as_tensor(sample_weight, "sample_weight")
        batch = Batch.of(scores, target, kind=known, ignore_index=ignore_index, sample_weight=weight)
        return cls.count(batch, **settings)

    @classmethod
    def of_triples(
        cls, confidence: Any, predicted: Any, labels: Any, *, sample_weight: Any = None, **settings: Any
    ) -> Self:
        """Return the sums of predictions of which only the confidence, the class, and the true class are known."""
        weight = None if sample_weight is None else as_tensor(sample_weight, "sample_weight")
        given = {"confidence": confidence, "predicted": predicted, "labels": labels}
        parts = (as_tensor(array, name) for name, array in given.items())
        return cls.count(Batch.of_triples(*parts, sample_weight=weight), **settings)

    def __add__(self, other: Tally) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        self._agree(other)
        theirs = other._values()
        return self._with({name: value + theirs[name] for name, value in self._values().items() if _is_sum(value)})

    def _agree(self, other: Tally, *, except_for: Iterable[str] = ()) -> None:
        """Raise an error unless both have the same settings, and sums of the same shape."""
        mine, theirs = ({name: _kind(value) for name, value in one._values().items()} for one in (self, other))
        for name in mine | theirs:
            one, two = mine.get(name, "absent"), theirs.get(name, "absent")
            if one != two and name not in except_for:
                raise InputError(
                    f"cannot add two {type(self).__name__}: {name} is {one} in one, {two} in the other; "
                    "count both with the same settings, bins and classes"
                )

    def __radd__(self, other: object) -> Self:
        if other == 0:  # where sum() starts
            return self
        return NotImplemented

    def all_reduce(self) -> Self:
        """Return the sums over all processes, the same on each process. With one process, return the tally itself."""
        return self._map(lambda part: part.all_reduce() if isinstance(part, Tally) else all_reduce(part))

    def to(self, device: torch.device | str) -> Self:
        """Return the same sums on another device."""
        return self._map(lambda part: part.to(device))

    def _values(self) -> dict[str, Any]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def _with(self, sums: dict[str, Any]) -> Self:
        return dataclasses.replace(self, **sums)

    def _map(self, function: Callable[[Any], Any]) -> Self:
        return self._with({name: function(value) for name, value in self._values().items() if _is_sum(value)})

    def tensors(self) -> dict[str, Tensor]:
        """Return the sums by name. The names of the sums of a nested tally start with its name and a dot."""
        flat: dict[str, Tensor] = {}
        for name, value in self._values().items():
            if isinstance(value, Tensor):
                flat[name] = value
            elif isinstance(value, Tally):
                flat |= {f"{name}.{inner}": tensor for inner, tensor in value.tensors().items()}
        return flat

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, ready for JSON. A nested tally is a nested dict."""
        kept = {name: value for name, value in self._values().items() if not isinstance(value, Tensor)}
        return {name: value.settings() if isinstance(value, Tally) else value for name, value in kept.items()}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Rebuild a tally from its `tensors` and `settings`."""
        hints = typing.get_type_hints(cls)
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            name, inner = field.name, _tally_type(hints[field.name])
            if inner is not None and settings.get(name) is not None:
                values[name] = inner.restore(under(f"{name}.", tensors), settings[name])
            elif name in settings or field.default is dataclasses.MISSING:  # what is newer than a file has its default
                values[name] = tensors[name] if name in tensors else settings[name]
        return cls(**values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``.safetensors`` file atomically. After `load`, more sums can be added to the tally."""
        meta = {"tally": type(self).__name__, "settings": json.dumps(self.settings())}
        save_tensors(path, self.tensors(), meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file written by `save`."""
        tensors, meta = load_tensors(path)
        if meta.get("tally") != cls.__name__:
            raise InputError(f"{path}: expected a saved {cls.__name__}, got {meta.get('tally', 'no tally')}")
        try:
            return cls.restore(tensors, json.loads(meta["settings"]))
        except KeyError as error:
            raise InputError(f"{path} lacks {error}, so it is not a {cls.__name__} of this version of acls") from error


@dataclass(frozen=True, eq=False)
class Several(Tally):
    """Tallies by the names of their classes."""

    tallies: Mapping[str, Tally]

    def summary(self) -> dict[str, float]:
        return {name: value for tally in self.tallies.values() for name, value in tally.summary().items()}

    def _values(self) -> dict[str, Any]:
        return dict(self.tallies)

    def _with(self, sums: dict[str, Any]) -> Several:
        return Several(sums)

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Several:
        return cls({name: TALLIES[name].restore(under(f"{name}.", tensors), own) for name, own in settings.items()})


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without that prefix."""
    return {name.removeprefix(prefix): part for name, part in tensors.items() if name.startswith(prefix)}


def ratio(total: Tensor | float, n: Tensor | float) -> float:
    """Return the mean of n samples from their sum; NaN without samples."""
    return float(total) / float(n) if n else float("nan")


def _tally_type(hint: Any) -> type[Tally] | None:
    options = (hint, *typing.get_args(hint))
    return next((one for one in options if isinstance(one, type) and issubclass(one, Tally)), None)


def _kind(value: object) -> str:
    """Describe the value of a field. Two tallies can be added only if their fields have equal descriptions."""
    if isinstance(value, Tensor):
        return f"of shape {tuple(value.shape)}"
    return "absent" if value is None else "present" if _is_sum(value) else repr(value)


def _is_sum(value: object) -> bool:
    return isinstance(value, Tensor | Tally)
