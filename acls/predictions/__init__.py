"""Predictions of any model, from any project: where everything after training starts.

A file holds rows of K ``logits``, ``probs`` or ``log_probs``, or only ``confidence`` and ``predicted``; the ``labels``;
and optionally ``group`` and ``image``. Stated confidences, as of language models, are ``confidence`` and ``correct``.
The kind is the name that holds the scores: it is said, never guessed from values. ``.npz``, ``.safetensors``,
``.parquet`` and ``.csv`` are read in slices, so a file may be larger than memory.
"""

from acls.predictions.columns import Columns
from acls.predictions.core import KINDS, ZERO, Kind, Predictions, to_logits
from acls.predictions.readers import Batches, Source, open_batches, slices
from acls.predictions.writers import save_batches

__all__ = [
    "KINDS", "ZERO", "Batches", "Columns", "Kind", "Predictions", "Source",
    "open_batches", "save_batches", "slices", "to_logits",
]  # fmt: skip
