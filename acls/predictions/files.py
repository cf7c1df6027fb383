"""What every format of predictions gives: names, a number of rows, and slices of arrays."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from acls.predictions.columns import Field, Layout

Array = NDArray[Any]


class DataFile(ABC):
    """An open file. Subclasses fill `fields` and `meta` when they are made; leaving the ``with`` closes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta: dict[str, str] = {}
        self.fields: dict[str, Field] = {}
        with ExitStack() as stack:
            self._open_files(stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> DataFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @abstractmethod
    def _open_files(self, stack: ExitStack) -> None:
        """Open what must be closed in the end, and find `fields` and `meta`."""

    @abstractmethod
    def n_rows(self, layout: Layout) -> int | None:
        """The number of rows, the same in all arrays of the layout; None if only reading tells."""

    @abstractmethod
    def n_cells(self, layout: Layout) -> int:
        """How many numbers one row of scores has."""

    @abstractmethod
    def blocks(self, layout: Layout, rows: int) -> Iterator[dict[str, list[Array]]]:
        """Yield the arrays of each role, at most ``rows`` rows at a time."""


def text_dict(text: str) -> dict[str, str]:
    """The meta that a file holds as JSON text; empty if it is something else that only has the same name."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
