"""Store a result beside the predictions that it describes, so that nothing is computed twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from acls.errors import InputError
from acls.metrics import Suite
from acls.metrics.tally import under
from acls.results.details import Details, Mistake, Resampled
from acls.results.result import Result
from acls.storage import load_tensors, save_tensors

VERSION = "1"
"""Version of the stored results; results of another version are computed again."""


def kept(file: Path, of: Path, make: Callable[[], Result]) -> Result:
    """Return the result in ``file`` if it matches the current predictions in ``of``; else compute and store it.

    If the folder is not writable, the result is not stored.
    """
    key = fingerprint(of)
    if file.is_file():
        with suppress(InputError, KeyError, ValueError, TypeError):
            return restore(file, key)
    made = make()
    with suppress(OSError, InputError):
        file.parent.mkdir(exist_ok=True)
        save(made, file, key)
    return made


def fingerprint(file: Path) -> str:
    """Return a text that changes when a file is rewritten: its size, its time and the version of stored results."""
    state = file.stat()
    return f"{VERSION}-{state.st_size}-{state.st_mtime_ns}"


def save(result: Result, file: Path, key: str) -> None:
    """Write a result with its sums, resamples and mistakes; ``key`` identifies the predictions."""
    details = result.details
    suite = None if result.suite is None else replace(result.suite, redraws=None)  # not needed: the p-value is known
    tensors = {} if suite is None else {f"suite/{name}": part for name, part in suite.tensors().items()}
    if details.resamples is not None:
        tensors["units"] = details.resamples.units
        tensors |= {f"resamples/{name}": part.float() for name, part in details.resamples.metrics.items()}
    meta: dict[str, Any] = {
        "result": result.as_json(),
        "suite": None if suite is None else suite.settings(),
        "about": {"labels": result.labels, "kind": result.kind, "rows": result.rows, "has_images": result.has_images},
        "mistakes": [asdict(one) for one in details.mistakes],
        "meta": dict(details.meta),
    }
    save_tensors(file, tensors, {"key": key, **{name: json.dumps(part) for name, part in meta.items()}})


def restore(file: Path, key: str | None = None) -> Result:
    """Read a result that `save` wrote; raise an error if it belongs to another ``key``."""
    tensors, stored = load_tensors(file)
    if key is not None and stored["key"] != key:
        raise InputError(f"{file} contains the result of other predictions")
    meta = {name: json.loads(stored[name]) for name in ("result", "suite", "about", "mistakes", "meta")}
    resamples = Resampled(under("resamples/", tensors), tensors["units"]) if "units" in tensors else None
    return replace(
        Result.from_json(meta["result"]),
        suite=None if meta["suite"] is None else Suite.restore(under("suite/", tensors), meta["suite"]),
        details=Details(tuple(Mistake(**one) for one in meta["mistakes"]), resamples, meta["meta"]),
        **meta["about"],
    )
