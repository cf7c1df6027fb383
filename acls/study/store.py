"""The store of a study: one row per finished cell, in an SQLite file that is never half-written."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acls.errors import InputError
from acls.locks import hold
from acls.metrics.estimates import Estimate
from acls.metrics.significance import Floor
from acls.options import to_plain
from acls.results import Record, Result

NAME = "study.sqlite"
LOCK = "study.lock"
BUSY = 60.0
"""Seconds that a reader or writer waits for another to finish a row."""

_KEY = ("recipe", "method", "seed", "posthoc", "split", "protocol")
_JSON = ("metrics", "protocol", "settings")
_COLUMNS = {
    "method": "TEXT", "seed": "INTEGER", "recipe": "TEXT", "posthoc": "TEXT", "split": "TEXT", "n": "INTEGER",
    "metrics": "TEXT", "protocol": "TEXT", "seconds": "REAL", "run": "TEXT", "settings": "TEXT",
}  # fmt: skip


@dataclass(frozen=True)
class Row(Record):
    """A stored record, with the settings it was trained and measured by."""

    recipe: str
    split: str
    seconds: float
    """Of training; the same for all rows of a run."""
    run: str
    """The run's folder, relative to the study's."""
    settings: dict[str, Any]
    """``recipe`` and ``loss``, whole."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes a cell: there is one row of each."""
        return tuple(_cell(self, name) for name in _KEY)


class Store:
    """The rows of the study in a folder.

    Any number of processes may read and write; each row is there whole or not at all. A study holds `lock` while it
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
        columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in _COLUMNS.items())
        made = f"CREATE TABLE IF NOT EXISTS cells ({columns}, PRIMARY KEY ({', '.join(_KEY)}))"
        with self._connection() as database:
            database.execute(made if create else "SELECT 1 FROM cells LIMIT 1")

    def rows(self) -> list[Row]:
        """All rows, in the order in which they were stored."""
        with self._connection() as database:
            found = database.execute(f"SELECT {', '.join(_COLUMNS)} FROM cells ORDER BY rowid").fetchall()
        try:
            return [_row(dict(zip(_COLUMNS, values, strict=True))) for values in found]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"cannot use {self.path}: a row in it is not one of acls ({error}); restore it") from error

    def add(self, *rows: Row) -> None:
        """Store rows, all of them or none; a cell that is there already is replaced."""
        values = [[_cell(row, name) for name in _COLUMNS] for row in rows]
        places = ", ".join("?" * len(_COLUMNS))
        with self._connection() as database:
            database.executemany(f"INSERT OR REPLACE INTO cells ({', '.join(_COLUMNS)}) VALUES ({places})", values)

    def add_files(self, files: Mapping[tuple[str, str], bytes]) -> None:
        """Store small files of the runs, by run and name, in the place of those that were there."""
        with self._connection() as database:
            database.execute("CREATE TABLE IF NOT EXISTS files (run TEXT, name TEXT, content BLOB)")
            database.execute("DELETE FROM files")
            rows = [(run, name, content) for (run, name), content in files.items()]
            database.executemany("INSERT INTO files VALUES (?, ?, ?)", rows)

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
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path)) from error
            raise InputError(f"cannot use {self.path}: {error}") from error


def _cell(row: Row, name: str) -> Any:
    """A column of a row as SQLite holds it; the same settings are the same text."""
    value = row.result.as_json() if name == "metrics" else getattr(row, name)
    return json.dumps(to_plain(value), sort_keys=True) if name in _JSON else value


def _row(values: dict[str, Any]) -> Row:
    plain = {name: json.loads(value) if name in _JSON else value for name, value in values.items()}
    n, metrics, plain["seed"] = plain.pop("n"), plain.pop("metrics"), int(plain["seed"])
    return Row(**plain, result=Result.from_json(metrics) if "n" in metrics else _result_of_old(metrics, n))


def _result_of_old(metrics: dict[str, dict[str, float | None]], n: int) -> Result:
    """What version 0.1.0 stored: value, interval and noise floor of each metric. Its intervals could miss the value."""
    estimates, floors = {}, {}
    for name, one in metrics.items():
        value, low, high, floor, ceiling = (one[part] for part in ("value", "low", "high", "floor", "floor_high"))
        if value is None:
            continue
        ends = (None, None) if low is None or high is None else (min(low, value), max(high, value))
        estimates[name] = Estimate(value, None, *ends)
        if floor is not None and ceiling is not None:
            floors[name] = Floor(floor, 0.0, ceiling)
    return Result(n, estimates, floors)
