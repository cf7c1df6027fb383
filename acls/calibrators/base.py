"""Base class of all calibrators: `fit` learns from held-out logits, and a call returns log-probabilities."""

from __future__ import annotations

import copy
import json
import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from os import PathLike
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from acls.calibrators.calibration_set import Batches, CalibrationSet, Score, ScoreTally, finite, tally_scores
from acls.errors import InputError
from acls.metrics.catalogue import in_percent
from acls.modules import Configured
from acls.shapes import IGNORE_INDEX, check_logits, flatten_logits, two_class_logits, unflatten_logits

TOO_FEW = "too few samples"
ROWS_PER_VALUE = 10
"""The minimum number of rows per learned value. A fit with fewer rows is not reliable."""


@dataclass(frozen=True)
class FitReport:
    """The scores on the fitting data before and after a fit, and warnings."""

    rows: int
    before: Score
    after: Score
    warnings: tuple[str, ...] = ()
    gap: float | None = None
    """An estimate of how far the objective is above its minimum; None if it has no minimum."""
    at_boundary: bool = False
    """Whether the objective still falls at the end of the range. The learned values are then at that end."""

    def __str__(self) -> str:
        before, after = self.before, self.after
        ece = f"ECE {in_percent(before.ece)} -> {in_percent(after.ece)}"
        scores = f"fitted on {self.rows:,} rows: NLL {before.nll:.4f} -> {after.nll:.4f}, {ece}"
        return "\n".join([scores, *(f"warning: {warning}" for warning in self.warnings)])


@dataclass
class Outcome:
    """The result of a method's own fit. It contains scores only if they cost nothing extra."""

    before: ScoreTally | None = None
    after: ScoreTally | None = None
    gap: float | None = None
    at_boundary: bool = False
    warnings: tuple[str, ...] = ()
    guarded: bool = True
    """Whether the guard may undo the fit. False if the user chose an objective other than the NLL."""


class Calibrator(Configured):
    """A map from logits ``(N, K, *D)`` to calibrated log-probabilities of the same shape.

    Learned values are buffers, so they are part of `state_dict`, move between devices, and are included in exported
    programs. They and the log-probabilities have the dtype of the logits in `fit`, but at least float32.
    """

    keeps_ranking = False
    """Whether the order of the classes in each row is preserved, so that the accuracy does not change."""
    streams = False
    """Whether `fit` reads an iterable of batches once per pass and never holds more than one of them."""
    pointwise = True
    """Whether the calibration of each position depends only on its own logits."""
    takes_impossible = False
    """Whether -inf, the logit of an impossible class, is kept. Otherwise it is replaced by a very low logit."""
    per_class = ""
    """The learned values that have one entry per class; empty if the method works for any number of classes."""
    no_weights: ClassVar[str] = ""
    """The reason why `fit` does not accept ``sample_weight``; empty if it does."""
    paper: ClassVar[str] = ""

    ignore_index: int = IGNORE_INDEX
    guard: bool = True
    """Leave the probabilities unchanged, with a warning, if the fitted map raises the NLL of its fitting data."""
    stated: bool = False
    """Whether to fit to stated confidences with the classes wrong and right: the confidence is that of "right"."""

    def __post_init__(self) -> None:
        self._report: FitReport | None = None
        # We read the fields once here, because torch.export of torch 2.6 cannot read them.
        self.learned = tuple(field.name for field in fields(self) if not field.init)
        """The names of the buffers that `fit` sets: all fields that are not arguments."""
        for name in self.learned:
            self.register_buffer(name, None)

    @property
    def report(self) -> FitReport:
        """The report of the last fit."""
        if self._report is None:
            raise InputError(f"{type(self).__name__} has no report: it is not fitted, or was loaded without one")
        return self._report

    @property
    def fitted(self) -> bool:
        """Whether the learned values are set."""
        return all(getattr(self, name) is not None for name in self.learned)

    def __str__(self) -> str:
        """Return the calibrator as text, with its learned numbers if few: ``Temperature(temperature=1.51)``."""
        values = self.state_dict().items()
        learned = [f"{name}={value.item():.4g}" for name, value in values if value.numel() == 1]
        return f"{repr(self)[:-1]}{', ' * bool(learned and not repr(self).endswith('()'))}{', '.join(learned)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # the representation in a notebook

    @torch.no_grad()
    def fit(
        self,
        logits: Tensor | Batches,
        target: Tensor | None = None,
        sample_weight: Tensor | None = None,
        *,
        group: Tensor | None = None,
    ) -> Self:
        """Learn from held-out logits and their labels, and return self.

        The input is tensors, or an iterable of batches ``(logits, target)`` or ``(logits, target, sample_weight)``. A
        sample of weight w counts as w equal samples. ``group`` is one number per sample. If a method chooses its
        strength by cross-validation, samples of one group stay in the same fold. The positions of a dense map always
        stay together.
        """
        if sample_weight is not None and self.no_weights:
            raise InputError(f"{type(self).__name__} does not support sample_weight: {self.no_weights}")
        data = CalibrationSet(logits, target, sample_weight, group=group, ignore_index=self.ignore_index)
        if self.streams:
            data.check_rereadable(type(self).__name__)
        else:
            data.hold()
        data.first()  # raises an error if there is no data
        self._report = self._reported(data, self._fit(data))
        logging.getLogger(__name__).info("%s, %s", self, self._report)
        return self

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated log-probabilities. Binary scores ``(N,)`` or ``(N, 1, *D)`` give those of two classes."""
        logits = two_class_logits(logits)
        check_logits(logits)
        self._check_fitted(logits.shape[1])
        rows = flatten_logits(logits)
        rows, fitted = self._as_wide(rows if self.takes_impossible else finite(rows))
        return unflatten_logits(fitted._transform(rows), logits.shape)

    def affine(self) -> tuple[Tensor, Tensor] | None:
        """Return (W, b) if the calibrator is ``log_softmax(W z + b)`` and can be folded into a layer; else None."""
        return None

    def save(self, path: str | PathLike[str]) -> None:
        """Write class, fields, learned values and report to a safetensors file."""
        from acls.storage import save_tensors

        self._check_fitted(None)
        meta = {"acls": "calibrator", "class": type(self).__name__, "fields": json.dumps(self.settings())}
        if self._report is not None:
            meta["report"] = json.dumps(asdict(self._report))
        save_tensors(path, {name: value.contiguous() for name, value in self.state_dict().items()}, meta)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Calibrator:
        """Read a file written by `save`. The class of the result is the one stored in the file."""
        from acls.calibrators import make_calibrator
        from acls.storage import load_tensors

        tensors, meta = load_tensors(path)
        if meta.get("acls") != "calibrator":
            raise InputError(f"{path} does not contain a calibrator: it was not written by Calibrator.save")
        try:
            calibrator = make_calibrator({"name": meta["class"], **json.loads(meta["fields"])})
            calibrator.load_state_dict(tensors)
            if "report" in meta:
                report = json.loads(meta["report"])
                scores = {name: Score(**report[name]) for name in ("before", "after")}
                calibrator._report = FitReport(**{**report, **scores, "warnings": tuple(report["warnings"])})
            calibrator._check_learned()
        except (KeyError, ValueError, TypeError, RuntimeError, IndexError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{path} contains a calibrator that cannot be used ({reason}): fit it again") from error
        if not isinstance(calibrator, cls):
            raise InputError(f"{path} contains a {meta['class']}, not a {cls.__name__}: load it with Calibrator.load")
        return calibrator

    def _check_learned(self) -> None:
        """Raise an error unless the learned values have the right shape and map logits to log-probabilities."""
        classes = self._n_classes() or 3
        blank = copy.deepcopy(self)
        blank._reset(torch.zeros(2, classes))
        for name in self.learned:
            value = getattr(self, name)
            if value.ndim != getattr(blank, name).ndim:
                raise ValueError(f"{name} has shape {tuple(value.shape)}")
            if bool(value.isnan().any()) or (name != "threshold" and bool(value.isinf().any())):
                raise ValueError(f"{name} is not finite")
            if name == "temperature" and not bool((value > 0).all()):
                raise ValueError(f"expected a temperature above 0, got {float(value.min()):g}")
        if self._n_classes() is not None and self.pointwise:
            self(torch.zeros(2, classes))

    @abstractmethod
    def _fit(self, data: CalibrationSet) -> Outcome:
        """Set the learned buffers."""

    @abstractmethod
    def _transform(self, rows: Tensor) -> Tensor:
        """Map logits ``(M, K)`` to log-probabilities."""

    @abstractmethod
    def _reset(self, like: Tensor) -> None:
        """Set the learned buffers to values that do not change the probabilities of such logits."""

    def _values(self, n_classes: int) -> int:
        """Return the number of values that the method learns for ``n_classes`` classes."""
        return sum(getattr(self, name).numel() for name in self.learned)

    def _n_classes(self) -> int | None:
        """Return the number of classes of the learned values, or None if they work for any number."""
        return len(getattr(self, self.per_class)) if self.per_class else None

    def _learn(self, like: Tensor, **values: Tensor | float) -> None:
        """Set learned buffers, in the dtype and on the device of the logits; skip values that are not learned."""
        for name, value in values.items():
            if name in self.learned:
                learned = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
                setattr(self, name, learned.detach().to(like).contiguous())

    def _as_wide(self, logits: Tensor) -> tuple[Tensor, Self]:
        """Return logits and calibrator in the wider of their dtypes. CSV files and NumPy arrays are often float64."""
        own = [*(buffer.dtype for buffer in self.buffers() if buffer.is_floating_point()), logits.dtype][0]
        wide = torch.promote_types(logits.dtype, own)
        return logits.to(wide), self if own == wide else copy.deepcopy(self).to(wide)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers to another device or dtype. Half precision is widened to float32."""

        def wide(value: Tensor) -> Tensor:
            moved = fn(value)
            return value.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

        super()._apply(wide, recurse)  # type: ignore[no-untyped-call]
        return self

    def _reported(self, data: CalibrationSet, outcome: Outcome) -> FitReport:
        """Measure a fit on its own data. The guard undoes a fit that does not help."""
        if self.stated:
            outcome.before = outcome.after = None
        tally = outcome.before or tally_scores(data, stated=self.stated)
        before = tally.score()
        after = (outcome.after or tally_scores(data, self._transform, stated=self.stated)).score()
        warnings = [*outcome.warnings, *self._doubts(tally.counts)]
        # An increase within rounding error does not count as an increase, but NaN does.
        if self.guard and outcome.guarded and not after.nll <= before.nll + 1e-6 * max(1.0, before.nll):
            warnings.append(
                f"{type(self).__name__} raises the NLL on its own fitting data from {before.nll:.4f} to "
                f"{after.nll:.4f}: the model is left unchanged (guard=False uses the fitted map)"
            )
            self._reset(data.first()[0])
            after = before
        n = int(tally.counts.sum())
        return FitReport(n, before, after, tuple(warnings), outcome.gap, outcome.at_boundary)

    def _doubts(self, counts: Tensor) -> list[str]:
        doubts = []
        n, values = int(counts.sum()), self._values(counts.numel())
        if n < ROWS_PER_VALUE * values:
            doubts.append(
                f"{TOO_FEW}: {n} for the {values} values that {type(self).__name__} learns; "
                f"at least {ROWS_PER_VALUE * values} are needed"
            )
        missing = (counts == 0).nonzero().flatten().tolist()
        if missing:
            named = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
            doubts.append(
                f"no samples of class {named} ({len(missing)} of {counts.numel()}): what is learned there is unreliable"
            )
        return doubts

    def _check_fitted(self, n_classes: int | None) -> None:
        if not self.fitted:
            raise InputError(f"{type(self).__name__} is not fitted: call fit(logits, target) first")
        own = self._n_classes()
        if n_classes is not None and own is not None and own != n_classes:
            raise InputError(f"{type(self).__name__} was fitted to {own} classes, but the logits have {n_classes}")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # An unfitted calibrator has no shapes yet, so it uses the shapes of the loaded values.
        for name in self.learned:
            value = state_dict.get(prefix + name)
            own = getattr(self, name)
            if isinstance(value, Tensor) and (own is None or own.shape != value.shape or own.dtype != value.dtype):
                device = None if own is None else own.device
                self.register_buffer(name, torch.empty_like(value, device=device))
        super()._load_from_state_dict(state_dict, prefix, *args)
