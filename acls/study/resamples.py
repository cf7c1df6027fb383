"""The metrics of a row's network on resampled test samples: from its outputs, or as they were kept without those."""

from __future__ import annotations

from pathlib import Path

from acls.storage import load_tensors, save_tensors
from acls.study.ranking import Resampled, resample
from acls.study.runs import evaluated, file_name, outputs
from acls.study.store import Row
from acls.train import RunFolder

_UNITS = "units"


def resampled(folder: str | Path, row: Row) -> Resampled:
    """Return the resamples behind a row, which those of other networks on the same samples can be compared with."""
    file = _file(folder, row)
    if file.is_file():
        tensors, _ = load_tensors(file)
        return Resampled({name: tensor for name, tensor in tensors.items() if name != _UNITS}, tensors[_UNITS])
    counted = evaluated(outputs(folder, row)).blocks
    assert counted is not None  # there are outputs
    return resample(counted)


def keep(folder: str | Path, row: Row, out: str | Path) -> None:
    """Write the resamples behind a row into another folder, in single precision."""
    found = resampled(folder, row)
    file = _file(out, row)
    file.parent.mkdir(parents=True, exist_ok=True)
    metrics = {name: values.float() for name, values in found.metrics.items()}
    save_tensors(file, {**metrics, _UNITS: found.units}, {})


def known(folder: str | Path, row: Row) -> bool:
    """Tell whether the resamples behind a row can be had."""
    return _file(folder, row).is_file() or RunFolder(Path(folder, row.run)).predictions("test").is_file()


def _file(folder: str | Path, row: Row) -> Path:
    return Path(folder, row.run, "resamples", f"{file_name(row.posthoc)}.safetensors")
