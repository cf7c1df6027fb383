"""Train a recipe: ``fit(find("digits_cnn"), "runs/first")``. One loop, on Lightning Fabric, serves every loss."""

from acls.train.evaluate import predict_run
from acls.train.folder import RunFolder, open_run
from acls.train.guards import TrainingStopped
from acls.train.loop import TrainedRun, fit, resume
from acls.train.plan import Plan, make_plan
from acls.train.setup import Given

__all__ = [
    "Given", "Plan", "RunFolder", "TrainedRun", "TrainingStopped", "fit", "make_plan", "open_run", "predict_run",
    "resume",
]  # fmt: skip
