"""Result: what is known of one set of predictions, in one frozen object that every view reads."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acls.errors import InputError, require
from acls.metrics import Blocks, Suite
from acls.metrics.catalogue import CATALOGUE, names
from acls.metrics.decision import Decision, decide
from acls.metrics.estimates import Estimate
from acls.metrics.significance import Floor, Test
from acls.options import to_plain
from acls.results.details import Details

LEVEL = 0.05
"""A p-value below this counts as more than chance."""
_PARTS = ("n", "debiased", "intervals", "floors", "bounds", "tests", "verdict", "unit", "notes", "groups")


@dataclass(frozen=True, repr=False)
class Result:
    """The metrics of one set of predictions, with what each is worth."""

    n: int
    """Labelled rows."""
    estimates: Mapping[str, Estimate]
    """Every metric by its name in `acls.metrics.catalogue`: value, debiased estimate, interval."""
    floors: Mapping[str, Floor] = field(default_factory=dict)
    """What each calibration error would be for a calibrated model with the same confidences at the same n."""
    tests: Mapping[str, Test] = field(default_factory=dict)
    p: float | None = None
    """Of a calibrated model showing as much: one p from several tests; None where nothing could be tested."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """How far a value can be from the exact one, where a histogram stands in for all samples."""
    unit: str = "row"
    """What is independent: rows, or the images that rows are pixels of."""
    groups: Mapping[str, Result] = field(default_factory=dict)
    suite: Suite | None = field(default=None, repr=False, compare=False)
    """The sums behind it, from which diagrams are drawn."""
    blocks: Blocks | None = field(default=None, repr=False, compare=False)
    """The same sums kept apart by unit, where two models are to be compared on the same samples."""
    labels: int | None = field(default=None, repr=False, compare=False)
    """A hash of the labels in their order: the same for the same samples."""
    details: Details | None = field(default=None, repr=False, compare=False)
    """What a page and a ranking need beside the numbers, where it was asked for."""
    kind: str = field(default="", compare=False)
    """What the scores were: logits, probs, log_probs or triples."""
    rows: int = field(default=0, compare=False)
    """Rows in all, with those that have no label."""
    has_images: bool = field(default=False, compare=False)

    @property
    def values(self) -> dict[str, float]:
        """Every metric as papers print it, by name."""
        return {name: one.value for name, one in self.estimates.items()}

    @property
    def debiased(self) -> dict[str, float]:
        """The estimates without the bias of noise, for the metrics that have one."""
        return {name: one.debiased for name, one in self.estimates.items() if one.debiased is not None}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % intervals, for the metrics that have one."""
        return {
            name: (one.low, one.high)
            for name, one in self.estimates.items()
            if one.low is not None and one.high is not None
        }

    def __getitem__(self, name: str) -> float:
        """The value of a metric, as a fraction; its interval and debiased estimate are in ``estimates``."""
        try:
            return self.estimates[name].value
        except KeyError:
            raise InputError(f"expected a metric of this result, got {name!r}: {', '.join(self.estimates)}") from None

    def get(self, name: str) -> float | None:
        """The value of a metric, or None; ``ece_floor`` is the noise floor of the ECE."""
        if name.endswith("_floor"):
            floor = self.floors.get(name.removesuffix("_floor"))
            return None if floor is None else floor.mean
        return self.estimates[name].value if name in self.estimates else None

    def decide(self, max_error: float, *, level: float = 0.95) -> Decision:
        """The threshold above which at most ``max_error`` of the predictions are wrong, at confidence ``level``.

        By images where these are the units; needs the sums, which a stored result does not have.
        """
        if self.suite is None or (self.unit == "image" and self.blocks is None):
            raise InputError("a stored result has no confidences: evaluate the predictions again to choose a threshold")
        units = self.blocks if self.unit == "image" else None
        return decide(self.suite.confidences, units, max_error=max_error, level=level)

    def __repr__(self) -> str:
        shown = [CATALOGUE[name].phrase(self[name]) for name in names(1, among=self.estimates)]
        return f"Result(n={self.n}, {', '.join(shown)})"

    def _repr_html_(self) -> str:
        """The verdict and a table, as a notebook shows it."""
        from acls.results.words import verdict

        views = require("acls.report.results", extra="plot")  # above this package
        return f"<p>{html.escape(verdict(self).text)} n = {self.n:,}</p>{views.metric_table(self).html()}"

    def to_frame(self) -> Any:
        """A pandas DataFrame: a row per metric with value, debiased estimate, ends of the interval and noise floor."""
        rows = {
            name: (one.value, one.debiased, one.low, one.high, self.get(f"{name}_floor"))
            for name, one in self.estimates.items()
        }
        columns = ["value", "debiased", "low", "high", "floor"]
        frame: Any = require("pandas", extra="frames").DataFrame.from_dict(rows, orient="index", columns=columns)
        return frame.astype(float).rename_axis("metric")

    def plot(self, ax: Any = None) -> Any:
        """Draw the reliability diagram on ``ax``, or on a figure of its own, and return the axes."""
        if self.suite is None:
            raise InputError("a result that was read from a file or a store holds no sums to draw: evaluate again")
        reliability = require("acls.report.figures.reliability", extra="plot")  # above this package, and an extra
        return reliability.plot(self.suite.bins.reliability(), ax, cells=self.suite.confidences.cells())[1]

    def as_json(self) -> dict[str, Any]:
        """A plain object, as `acls evaluate --json` prints it and stores keep it; null for what is not known."""
        from acls.results.words import verdict

        shown = [name for name in names(3) if CATALOGUE[name].needs != "maps"]
        plain: dict[str, Any] = to_plain(
            {
                "n": self.n,
                **{name: self.get(name) for name in dict.fromkeys([*shown, *self.estimates])},
                "debiased": self.debiased,
                "intervals": {name: list(ends) for name, ends in self.intervals.items()},
                "floors": {name: vars(one) for name, one in self.floors.items()},
                "bounds": dict(self.bounds),
                "tests": {name: vars(one) for name, one in self.tests.items()},
                "notes": {name: one.note for name, one in self.estimates.items() if one.note},
                "unit": self.unit,
                "verdict": vars(verdict(self)),
            }
        )
        if self.groups:
            plain["groups"] = {name: group.as_json() for name, group in self.groups.items()}
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Result:
        """Undo `as_json`, but for the sums."""
        nothing: dict[str, Any] = {}
        debiased, intervals, notes = (plain.get(part, nothing) for part in ("debiased", "intervals", "notes"))
        return cls(
            n=plain["n"],
            estimates={
                name: Estimate(float(value), debiased.get(name), low, high, notes.get(name, ""))
                for name, value in plain.items()
                if name not in _PARTS and value is not None
                for low, high in [intervals.get(name, (None, None))]
            },
            floors={name: Floor(**floor) for name, floor in plain.get("floors", nothing).items()},
            tests={name: Test(**test) for name, test in plain.get("tests", nothing).items()},
            p=plain.get("verdict", nothing).get("p"),
            bounds=plain.get("bounds", nothing),
            unit=plain.get("unit", "row"),
            groups={name: cls.from_json(group) for name, group in plain.get("groups", nothing).items()},
        )


@dataclass(frozen=True)
class Record:
    """The result of one network, as it was trained or after a post-hoc method: a line of a table."""

    method: str
    """The loss as one would write it, ``ACLS(margin=6.0)``, or the name of a file."""
    seed: int | None
    posthoc: str
    """The calibrator, ``Temperature``; ``none`` for the network as it is."""
    result: Result
    protocol: Mapping[str, Any]
    """How the numbers were computed: two can stand in one table where this is the same."""

    @property
    def n(self) -> int:
        return self.result.n

    def as_json(self) -> dict[str, Any]:
        """A plain object: the numbers by name under ``metrics``, as 0.1.0 had them, and whole under ``result``."""
        numbers = {
            name: {
                **{part: getattr(one, part) for part in ("value", "debiased", "low", "high")},
                "floor": self.result.get(f"{name}_floor"),
            }
            for name, one in self.result.estimates.items()
        }
        about = {name: value for name, value in vars(self).items() if name != "result"}
        return {**about, "n": self.n, "metrics": numbers, "result": self.result.as_json()}
