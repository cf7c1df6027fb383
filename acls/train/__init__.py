"""Train a recipe: ``fit(find("digits_cnn"), "runs/first")``; one loop for every loss, on Lightning Fabric."""

from __future__ import annotations

from acls.train.errors import TrainingStopped
from acls.train.folder import RunFolder, open_run
from acls.train.loop import Result, fit, resume

__all__ = ["Result", "RunFolder", "TrainingStopped", "fit", "open_run", "resume"]
