"""The files of a study's runs: in a folder for each run, as training writes them, or together, as `acls share` does.

A shared study is two files: the store, which also holds the small files of every run, and the test outputs of all runs.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from acls.calibrators import Calibrator
from acls.errors import InputError
from acls.predictions import Predictions
from acls.recipes import Recipe, load_recipe
from acls.results.details import Details, Resampled
from acls.results.keeping import restore
from acls.storage import load_tensors

T = TypeVar("T")

STORE = "study.sqlite"
OUTPUTS = "outputs.safetensors"
RECIPE, METRICS, SUMMARY, ENVIRONMENT = "recipe.yaml", "metrics.csv", "summary.json", "environment.json"
TEST, VAL = "predictions/test.safetensors", "predictions/val.safetensors"
MAPS = "maps.json"
"""Of shared segmentation without outputs: the numbers that need all of them."""


@dataclass(frozen=True)
class RunFiles:
    """What a run left, wherever it is."""

    study: Path
    run: str
    """Relative to the study's folder."""

    def __post_init__(self) -> None:
        check_run(self.run)

    @property
    def path(self) -> Path:
        return self.study / self.run

    def read(self, name: str) -> bytes | None:
        """A small file of the run; None where there is none."""
        file = self.path / name
        if file.is_file():
            return file.read_bytes()
        return shared_files(self.study).get((self.run, name))

    def text(self, name: str) -> str:
        """The same as text; empty where there is none."""
        return (self.read(name) or b"").decode("utf-8")

    def history(self) -> list[dict[str, float]]:
        """The numbers of each finished epoch."""
        try:
            rows = csv.DictReader(io.StringIO(self.text(METRICS)))
            return [{name: float(value) for name, value in row.items()} for row in rows]
        except (ValueError, TypeError) as error:
            raise InputError(f"{self.path / METRICS} does not hold numbers in every row: {error}") from error

    def recipe(self) -> Recipe | None:
        return self._loaded(RECIPE, load_recipe)

    def calibrator(self, posthoc: str) -> Calibrator | None:
        return self._loaded(calibrator_file(posthoc), Calibrator.load)

    def has_outputs(self) -> bool:
        return (self.path / TEST).is_file() or self._shared_outputs() is not None

    def test(self) -> Predictions:
        """The test outputs of the network as it is."""
        if (self.path / TEST).is_file():
            return Predictions.load(self.path / TEST)
        shared = self._shared_outputs()
        if shared is None:
            raise InputError(f"{self.path} holds no test outputs: {TEST} is missing")
        found = Predictions.load(self.study / OUTPUTS, ignore_index=None, **shared["columns"])
        return replace(found, meta=shared["meta"])

    def kept(self, posthoc: str) -> Details | None:
        """What was kept of outputs that were not shared."""
        found = self._loaded(kept_file(posthoc), restore)
        if found is not None:
            return found.details
        old = self.path / "resamples" / f"{file_name(posthoc)}.safetensors"  # as version 0.1.0 shared it
        if not old.is_file():
            return None
        tensors, _ = load_tensors(old)
        units = tensors.pop("units")
        return Details(resamples=Resampled(tensors, units))

    def _shared_outputs(self) -> dict[str, Any] | None:
        described = shared_files(self.study).get((self.run, OUTPUTS))
        return None if described is None or not (self.study / OUTPUTS).is_file() else json.loads(described)

    def _loaded(self, name: str, load: Callable[[Path], T]) -> T | None:
        if (self.path / name).is_file():
            return load(self.path / name)
        content = self.read(name)
        if content is None:
            return None
        with _as_file(content, PurePosixPath(name).suffix) as file:
            return load(file)


def check_run(run: str) -> None:
    """Raise for the folder of a run that is not inside its study: a received store may name any place."""
    parts = PurePosixPath(run)
    if parts.is_absolute() or ".." in parts.parts or "\\" in run or "\0" in run:
        raise InputError(f"expected the folder of a run inside the study, got {run!r}: this store was tampered with")


def calibrator_file(posthoc: str) -> str:
    """Where a run keeps a fitted calibrator."""
    return f"calibrators/{file_name(posthoc)}.safetensors"


def kept_file(posthoc: str) -> str:
    """Where a run keeps what was computed from its test outputs."""
    return f"results/{file_name(posthoc)}.safetensors"


def file_name(method: str) -> str:
    """A method as the name of a file or folder."""
    return re.sub(r"[^A-Za-z0-9.=_]+", "-", method).strip("-")


_shared: dict[tuple[str, int], dict[tuple[str, str], bytes]] = {}


def shared_files(study: Path) -> Mapping[tuple[str, str], bytes]:
    """The small files that a shared store holds, by run and name; none for a study as it was run."""
    store = study / STORE
    if not store.is_file():
        return {}
    key = os.path.realpath(store), store.stat().st_mtime_ns
    if key not in _shared:
        with closing(sqlite3.connect(store)) as database:
            exists = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'files'").fetchone()
            rows = database.execute("SELECT run, name, content FROM files").fetchall() if exists else []
        _shared.clear()  # one study at a time is enough
        _shared[key] = {(run, name): content for run, name, content in rows}
    return _shared[key]


@contextmanager
def _as_file(content: bytes, suffix: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"file{suffix}")
        file.write_bytes(content)
        yield file
