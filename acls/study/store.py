"""A study on disk: a store with one row per finished cell, in an SQLite file with atomic writes, and files of runs.

Each run has its own folder, as training writes it. In a shared study, as `acls share` writes it, there are only two
files: the store, which then also contains the small files of every run, and the test outputs of all runs.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from acls.calibrators import Calibrator
from acls.errors import InputError
from acls.metrics.estimates import Estimate
from acls.metrics.significance import Floor
from acls.options import to_plain
from acls.predictions import Predictions
from acls.recipes import Recipe, load_recipe
from acls.results import Record, Result
from acls.results.details import Details, Resampled
from acls.results.keeping import restore
from acls.storage import hold, load_tensors
from acls.study.methods import restated
from acls.train.folder import METRICS, RECIPE, TEST

T = TypeVar("T")

STORE = "study.sqlite"
OUTPUTS = "outputs.safetensors"
MAPS = "maps.json"
"""For shared segmentation studies without outputs: the metrics that need all outputs."""
BUSY = 60.0
"""Seconds that a reader or writer waits until another process has finished a row."""

_KEY = ("recipe", "method", "seed", "posthoc", "split", "protocol")
_JSON = ("metrics", "protocol", "settings")
_COLUMNS = {
    "method": "TEXT", "seed": "INTEGER", "recipe": "TEXT", "posthoc": "TEXT", "split": "TEXT", "n": "INTEGER",
    "metrics": "TEXT", "protocol": "TEXT", "seconds": "REAL", "run": "TEXT", "settings": "TEXT",
}  # fmt: skip


@dataclass(frozen=True)
class Row(Record):
    """A stored record, with the settings of its training and measurement."""

    recipe: str
    split: str
    seconds: float
    """Training time; equal for all rows of a run."""
    run: str
    """The folder of the run, relative to the study's folder."""
    settings: dict[str, Any]
    """All settings of the ``recipe`` and the ``loss``."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The identity of a row: a store has at most one row for each key."""
        return tuple(_cell(self, name) for name in _KEY)


class Store:
    """The rows of the study in a folder.

    Any number of processes may read and write. Each row is written atomically. A study holds `lock` while it runs, so
    that no two processes train the same cells.
    """

    def __init__(self, folder: str | os.PathLike[str], *, create: bool = False) -> None:
        self.folder = Path(folder)
        self.path = self.folder / STORE
        if create:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot create the study's folder {folder}: {error.strerror}") from error
        elif not self.path.is_file():
            raise InputError(f"{folder} is not the folder of a study: there is no {STORE} in it")
        columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in _COLUMNS.items())
        made = f"CREATE TABLE IF NOT EXISTS cells ({columns}, PRIMARY KEY ({', '.join(_KEY)}))"
        with self._connection() as database:
            database.execute(made if create else "SELECT 1 FROM cells LIMIT 1")

    def rows(self) -> list[Row]:
        """Return all rows, in the order in which they were stored."""
        with self._connection() as database:
            found = database.execute(f"SELECT {', '.join(_COLUMNS)} FROM cells ORDER BY rowid").fetchall()
        try:
            return [_row(dict(zip(_COLUMNS, values, strict=True))) for values in found]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"cannot use {self.path}: a row in it was not written by acls ({error}); restore it"
            ) from error

    def add(self, *rows: Row) -> None:
        """Store all rows or, if this fails, none; an existing row with the same key is replaced."""
        values = [[_cell(row, name) for name in _COLUMNS] for row in rows]
        places = ", ".join("?" * len(_COLUMNS))
        with self._connection() as database:
            database.executemany(f"INSERT OR REPLACE INTO cells ({', '.join(_COLUMNS)}) VALUES ({places})", values)

    def add_files(self, files: Mapping[tuple[str, str], bytes]) -> None:
        """Store small files of the runs, by run and name; existing files are replaced."""
        with self._connection() as database:
            database.execute("CREATE TABLE IF NOT EXISTS files (run TEXT, name TEXT, content BLOB)")
            database.execute("DELETE FROM files")
            rows = ((*key, content) for key, content in files.items())
            database.executemany("INSERT INTO files VALUES (?, ?, ?)", rows)

    def lock(self, *, wait: bool = False) -> AbstractContextManager[None]:
        """Lock the folder for one study; if another process holds the lock, raise an error that names it, or wait."""
        return hold(self.folder / "study.lock", wait=wait)

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
    """Return a column of a row as an SQLite value; equal settings give equal text."""
    value = row.result.as_json() if name == "metrics" else getattr(row, name)
    return json.dumps(to_plain(value), sort_keys=True) if name in _JSON else value


def _row(values: dict[str, Any]) -> Row:
    plain = {name: json.loads(value) if name in _JSON else value for name, value in values.items()}
    plain["method"] = restated(plain["method"], plain["settings"].get("loss", {}))
    n, metrics, plain["seed"] = plain.pop("n"), plain.pop("metrics"), int(plain["seed"])
    return Row(**plain, result=Result.from_json(metrics) if "n" in metrics else _result_of_old(metrics, n))


def _result_of_old(metrics: dict[str, dict[str, float | None]], n: int) -> Result:
    """Read what version 0.1.0 stored: value, interval and noise floor of each metric; intervals may miss the value."""
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


@dataclass(frozen=True)
class RunFiles:
    """The files of a run, in its own folder or in a shared study."""

    study: Path
    run: str
    """The folder of the run, relative to the study's folder."""

    def __post_init__(self) -> None:
        """Raise an error if the run is not inside its study: a store from somebody else may name any path."""
        run, parts = self.run, PurePosixPath(self.run)
        if parts.is_absolute() or ".." in parts.parts or "\\" in run or "\0" in run:
            raise InputError(f"expected a run's folder inside the study, got {run!r}: the store was tampered with")

    @property
    def path(self) -> Path:
        return self.study / self.run

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file of the run; None if the file does not exist."""
        file = self.path / name
        return file.read_bytes() if file.is_file() else shared_files(self.study).get((self.run, name))

    def text(self, name: str) -> str:
        """Return the content of a small file as text; empty if the file does not exist."""
        return (self.read(name) or b"").decode("utf-8")

    def history(self) -> list[dict[str, float]]:
        """Return the metrics of each finished epoch."""
        try:
            rows = csv.DictReader(io.StringIO(self.text(METRICS)))
            return [{name: float(value) for name, value in row.items()} for row in rows]
        except (ValueError, TypeError) as error:
            raise InputError(f"{self.path / METRICS} does not contain numbers in every row: {error}") from error

    def recipe(self) -> Recipe | None:
        return self._loaded(RECIPE, load_recipe)

    def calibrator(self, posthoc: str) -> Calibrator | None:
        return self._loaded(calibrator_file(posthoc), Calibrator.load)

    def has_outputs(self) -> bool:
        return (self.path / TEST).is_file() or self._shared_outputs() is not None

    def test(self) -> Predictions:
        """Return the test outputs of the network without a post-hoc method."""
        if (self.path / TEST).is_file():
            return Predictions.load(self.path / TEST)
        shared = self._shared_outputs()
        if shared is None:
            raise InputError(f"{self.path} contains no test outputs: {TEST} is missing")
        found = Predictions.load(self.study / OUTPUTS, ignore_index=None, **shared["columns"])
        return replace(found, meta=shared["meta"])

    def kept(self, posthoc: str) -> Details:
        """Return the details that were stored for outputs that were not shared; empty if there are none."""
        found = self._loaded(kept_file(posthoc), restore)
        if found is not None:
            return found.details
        old = self.path / "resamples" / f"{file_name(posthoc)}.safetensors"  # as version 0.1.0 shared it
        if not old.is_file():
            return Details()
        tensors, _ = load_tensors(old)
        return Details(resamples=Resampled(tensors, tensors.pop("units")))

    def _shared_outputs(self) -> dict[str, Any] | None:
        described = shared_files(self.study).get((self.run, OUTPUTS))
        return None if described is None or not (self.study / OUTPUTS).is_file() else json.loads(described)

    def _loaded(self, name: str, load: Callable[[Path], T]) -> T | None:
        if (self.path / name).is_file():
            return load(self.path / name)
        content = self.read(name)
        if content is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, PurePosixPath(name).name)
            file.write_bytes(content)
            return load(file)


def calibrator_file(posthoc: str) -> str:
    """Return the file in which a run stores a fitted calibrator."""
    return f"calibrators/{file_name(posthoc)}.safetensors"


def kept_file(posthoc: str) -> str:
    """Return the file in which a run stores the result computed from its test outputs."""
    return f"results/{file_name(posthoc)}.safetensors"


def file_name(method: str) -> str:
    """Convert the text of a method to the name of a file or folder."""
    return re.sub(r"[^A-Za-z0-9.=_]+", "-", method).strip("-")


def shared_files(study: Path) -> Mapping[tuple[str, str], bytes]:
    """Return the small files in a shared store, by run and name; empty for a study that was not shared."""
    store = study / STORE
    return _files_in(os.path.realpath(store), store.stat().st_mtime_ns) if store.is_file() else {}


@lru_cache(1)  # one study at a time is enough
def _files_in(store: str, _changed: int) -> Mapping[tuple[str, str], bytes]:
    with closing(sqlite3.connect(store)) as database:
        exists = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'files'").fetchone()
        rows = database.execute("SELECT run, name, content FROM files").fetchall() if exists else []
    return {(run, name): content for run, name, content in rows}
