"""The store of a study: one row a finished cell, in an SQLite file that is never half-written."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

from acls.errors import InputError
from acls.locks import hold
from acls.storage import finite

NAME = "study.sqlite"
LOCK = "study.lock"
BUSY = 60.0
"""Seconds that a reader or writer waits for another to finish a row."""

_KEY = ("recipe", "method", "seed", "posthoc", "split", "protocol")
_JSON = ("metrics", "protocol", "settings")


class Number(TypedDict):
    """A metric's value with its interval and what a calibrated model would show; None where there is no such thing."""

    value: float | None
    low: float | None
    high: float | None
    floor: float | None
    """The mean that noise alone gives, for calibration errors."""
    floor_high: float | None
    """What noise alone stays below, 97.5 times in 100."""


@dataclass(frozen=True)
class Row:
    """The numbers of one network, as it is or after a post-hoc method, with all that says how they came about."""

    method: str
    """The loss as one would write it: ``CE``, ``ACLS(margin=6.0)``."""
    seed: int
    recipe: str
    posthoc: str
    """The calibrator, ``Temperature`` or ``Temperature(objective='ece')``; ``none`` for the network as it is."""
    split: str
    n: int
    metrics: dict[str, Number]
    """By the names of `Suite.summary`."""
    protocol: dict[str, Any]
    """Bins, edges, split, rule that chose the checkpoint, positions that do not count: see `acls.study.runs`."""
    seconds: float
    """Of training; the same for all rows of a run."""
    run: str
    """The run's folder, relative to the study's."""
    settings: dict[str, Any]
    """``recipe`` and ``loss``, whole."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes a cell: there is one row of each."""
        return tuple(_text(name, getattr(self, name)) for name in _KEY)


class Store:
    """The rows of the study in a folder.

    Any number of readers and writers may be at it; each row is there whole or not at all. A study holds `lock` while it
    runs, so that no two train the same cells.
    """

    def __init__(self, folder: str | os.PathLike[str], *, create: bool = False) -> None:
        self.folder = Path(folder)
        self.path = self.folder / NAME
        if create:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot make the study's folder {folder}: {error.strerror}") from error
        elif not self.path.is_file():
            raise InputError(f"{folder} is not the folder of a study: there is no {NAME} in it")
        with self._connection() as database:
            kinds = {"seed": "INTEGER", "n": "INTEGER", "seconds": "REAL"}
            columns = ", ".join(f"{field.name} {kinds.get(field.name, 'TEXT')} NOT NULL" for field in fields(Row))
            database.execute(f"CREATE TABLE IF NOT EXISTS cells ({columns}, PRIMARY KEY ({', '.join(_KEY)}))")

    def rows(self) -> list[Row]:
        """All rows, in the order in which they were stored."""
        with self._connection() as database:
            found = database.execute(f"SELECT {', '.join(_names())} FROM cells ORDER BY rowid").fetchall()
        return [_row(dict(zip(_names(), values, strict=True))) for values in found]

    def add(self, *rows: Row) -> None:
        """Store rows, all of them or none; a cell that is there already is replaced."""
        values = [[_text(name, getattr(row, name)) for name in _names()] for row in rows]
        places = ", ".join("?" * len(_names()))
        with self._connection() as database:
            database.executemany(f"INSERT OR REPLACE INTO cells ({', '.join(_names())}) VALUES ({places})", values)

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Be the only study of this folder; where another process is, refuse with its name, or wait for it to end."""
        with hold(self.folder / LOCK, wait=wait):
            yield

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=BUSY)) as database, database:
                yield database
        except sqlite3.DatabaseError as error:
            raise InputError(f"cannot use {self.path}: {error}") from error


def _names() -> list[str]:
    return [field.name for field in fields(Row)]


def _text(name: str, value: Any) -> Any:
    """A field as SQLite holds it; the same settings are the same text."""
    return json.dumps(finite(value), sort_keys=True) if name in _JSON else value


def _row(values: dict[str, Any]) -> Row:
    return Row(**{name: json.loads(value) if name in _JSON else value for name, value in values.items()})
