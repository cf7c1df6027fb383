"""Read weights from files (never with unsafe pickle), including public weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acls.errors import InputError
from acls.storage import load_tensors


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read the named tensors of a .safetensors, .pt, .pth or .th file, without the wrappers that trainers add."""
    path = Path(path)
    if path.suffix == ".safetensors":
        return load_tensors(path)[0]
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(f"{path} contains more than weights, or is damaged: {str(error).splitlines()[0]}") from error
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"{path} does not contain a dictionary of weights")
    return {name.removeprefix("module.").removeprefix("_orig_mod."): value for name, value in found.items()}


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a weights file, which identifies the weights in the record of a run."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_into(model: nn.Module, path: str | Path, n_classes: int) -> str:
    """Load the weights of a file into a model, and return a line that lists the tensors left out ("" if none).

    Every tensor must fit, with two exceptions that keep their new weights: a last layer for other classes, and, if the
    file holds only the ``encoder``, all layers that the model adds to it.
    """
    loaded, target = read_weights(path), model
    encoder = getattr(model, "encoder", None)
    if isinstance(encoder, nn.Module) and not any(name.startswith("encoder.") for name in loaded):
        target = encoder
    own = target.state_dict()
    wrong = [name for name in own if name in loaded and own[name].shape != loaded[name].shape]
    head = [name for name in wrong if own[name].shape == (n_classes, *loaded[name].shape[1:])]
    missing = [name for name in own if name not in loaded and not name.endswith("num_batches_tracked")]
    extra = [name for name in loaded if name not in own]
    left = extra + head if target is encoder else head
    for names, what in ((missing, "lacks"), (extra, "has an unexpected"), (wrong, "has a different shape for")):
        unfit = [name for name in names if name not in left]
        if unfit:
            more = f" and {len(unfit) - 1} more" if len(unfit) > 1 else ""
            raise InputError(f"{path} does not fit the model: it {what} {unfit[0]}{more}")
    target.load_state_dict({name: value for name, value in loaded.items() if name not in left}, strict=False)
    if not left:
        return ""
    return f"{Path(path).name}: did not load {', '.join(sorted(left))}; the head for {n_classes} classes is new"
