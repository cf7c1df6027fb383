"""Calibrators: fix a trained network's probabilities from its logits on held-out data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acls.calibrators.affine import Dirichlet, Matrix, Vector
from acls.calibrators.base import Calibrator, FitReport
from acls.calibrators.calibration_set import Score
from acls.calibrators.cross_validation import Judgement, judge
from acls.calibrators.dropout import MCDropout
from acls.calibrators.ets import ETS
from acls.calibrators.export import export, export_onnx, fold
from acls.calibrators.local import IBTS, LTS
from acls.calibrators.logistic import Beta, Platt
from acls.calibrators.per_row import PTS, MetaCal, Selective
from acls.calibrators.tables import Histogram, Isotonic, Spline
from acls.calibrators.temperature import Temperature
from acls.spec import Spec, build, parse

_PARAMETRIC = (Temperature, Platt, Vector, Matrix, Dirichlet, Beta)
_TABLES = (Isotonic, Histogram, Spline)
_COMBINED = (ETS, PTS, LTS, IBTS, Selective, MetaCal)
REGISTRY: dict[str, type[Calibrator]] = {kind.__name__: kind for kind in (*_PARAMETRIC, *_TABLES, *_COMBINED)}
"""Every calibrator by its name."""


def make_calibrator(spec: str | Mapping[str, Any] | Spec | Calibrator, **fields: Any) -> Calibrator:
    """Build a calibrator from text, or from the output of its `settings`. Names are not case-sensitive.

    >>> make_calibrator("temperature", objective="ece"), make_calibrator("Vector(space=log_probs)")
    (Temperature(objective='ece'), Vector(space='log_probs'))
    """
    return build(spec, REGISTRY, "calibrator", **fields)


def make_calibrators(text: str) -> list[Calibrator]:
    """Build calibrators from comma-separated text, without duplicates. ``all`` means all that work on rows of logits.

    >>> make_calibrators("temperature, Temperature, Vector(space=log_probs)")
    [Temperature(), Vector(space='log_probs')]
    """
    rows = [name for name, kind in REGISTRY.items() if kind.pointwise]
    built = [make_calibrator(spec) for spec in parse(text, "calibrator", {"all": rows})]
    return list({repr(calibrator): calibrator for calibrator in built}.values())


__all__ = [
    "ETS", "IBTS", "LTS", "PTS", "REGISTRY", "Beta", "Calibrator", "Dirichlet", "FitReport", "Histogram",
    "Isotonic", "Judgement", "MCDropout", "Matrix", "MetaCal", "Platt", "Score", "Selective", "Spline",
    "Temperature", "Vector", "export", "export_onnx", "fold", "judge", "make_calibrator",
]  # fmt: skip
