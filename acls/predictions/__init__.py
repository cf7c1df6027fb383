"""Predictions of any model: the input of everything after training.

A file contains rows of K ``logits``, ``probs`` or ``log_probs``, or only ``confidence`` and ``predicted``. It also
contains the ``labels``, and optionally ``group`` and ``image``. Stated confidences, for example of language models, are
``confidence`` and ``correct``. The name of the scores gives their kind, which is never guessed from the values. Files
``.npz``, ``.safetensors``, ``.parquet`` and ``.csv`` are read in slices, so a file may be larger than memory.
"""

from acls.predictions.columns import Columns
from acls.predictions.core import KINDS, ZERO, Kind, Predictions, to_logits
from acls.predictions.readers import Batches, Source, open_batches, slices
from acls.predictions.writers import save_batches

__all__ = [
    "KINDS", "ZERO", "Batches", "Columns", "Kind", "Predictions", "Source",
    "open_batches", "save_batches", "slices", "to_logits",
]  # fmt: skip
