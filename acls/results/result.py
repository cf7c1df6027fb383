"""The `Result` of one set of predictions: one frozen object that tables, pages and JSON read."""

from __future__ import annotations

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
from acls.shown import Shown

LEVEL = 0.05
"""Significance level: a p-value below it counts as more than chance."""
_ESTIMATED = ("value", "debiased", "low", "high")
_PARTS = ("n", "debiased", "intervals", "floors", "bounds", "tests", "verdict", "unit", "notes", "groups")


@dataclass(frozen=True, repr=False)
class Result(Shown):
    """The metrics of one set of predictions, with their intervals, noise floors and tests."""

    n: int
    """Number of labelled rows."""
    estimates: Mapping[str, Estimate]
    """Every metric by its name in `acls.metrics.catalogue`: value, debiased estimate, interval."""
    floors: Mapping[str, Floor] = field(default_factory=dict)
    """Each calibration error that a calibrated model with the same confidences would have at the same n."""
    tests: Mapping[str, Test] = field(default_factory=dict)
    p: float | None = None
    """The p-value of "this model is calibrated", combined from several tests; None if nothing could be tested."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """Largest possible difference to the exact value, for metrics computed from a histogram of the samples."""
    unit: str = "row"
    """The independent unit: rows, or images if the rows are pixels."""
    groups: Mapping[str, Result] = field(default_factory=dict)
    suite: Suite | None = field(default=None, repr=False, compare=False)
    """The sums that the metrics are computed from; diagrams use them."""
    blocks: Blocks | None = field(default=None, repr=False, compare=False)
    """The same sums by blocks of units, if two models are to be compared on the same samples."""
    labels: int | None = field(default=None, repr=False, compare=False)
    """A hash of the labels in order: it is equal for the same samples."""
    details: Details = field(default_factory=Details, repr=False, compare=False)
    """Additional data for a page and a ranking; empty if it was not requested."""
    kind: str = field(default="", compare=False)
    """The kind of the scores: logits, probs, log_probs or triples."""
    rows: int = field(default=0, compare=False)
    """Number of all rows, including those without a label."""
    has_images: bool = field(default=False, compare=False)

    @property
    def values(self) -> dict[str, float]:
        """The value of every metric by name, as papers report it."""
        return {name: one.value for name, one in self.estimates.items()}

    @property
    def debiased(self) -> dict[str, float]:
        """The debiased estimates, for the metrics that have one."""
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
        """Return the value of a metric, as a fraction; ``estimates`` has its interval and debiased estimate."""
        try:
            return self.estimates[name].value
        except KeyError:
            raise InputError(
                f"expected a metric of this result, got {name!r}: choose from {', '.join(self.estimates)}"
            ) from None

    def get(self, name: str) -> float | None:
        """Return the value of a metric, or None if it is missing; ``ece_floor`` is the noise floor of the ECE."""
        if name.endswith("_floor"):
            floor = self.floors.get(name.removesuffix("_floor"))
            return None if floor is None else floor.mean
        return self.estimates[name].value if name in self.estimates else None

    def decide(self, max_error: float, *, level: float = 0.95) -> Decision:
        """Find the threshold above which at most ``max_error`` of the predictions are wrong, at confidence ``level``.

        The bound is over images if they are the unit. This needs the sums, which a stored result does not have.
        """
        if self.suite is None or (self.unit == "image" and self.blocks is None):
            raise InputError("a stored result has no confidences: evaluate the predictions again to choose a threshold")
        units = self.blocks if self.unit == "image" else None
        return decide(self.suite.confidences, units, max_error=max_error, level=level)

    def __repr__(self) -> str:
        shown = [CATALOGUE[name].phrase(self[name]) for name in names(1, among=self.estimates)]
        return f"Result(n={self.n}, {', '.join(shown)})"

    def numbers(self) -> dict[str, dict[str, float | None]]:
        """Return value, debiased estimate, interval ends and noise floor of every metric; None where there is none."""
        return {
            name: {part: getattr(one, part) for part in _ESTIMATED} | {"floor": self.get(f"{name}_floor")}
            for name, one in self.estimates.items()
        }

    def to_frame(self) -> Any:
        """Return a pandas DataFrame: a row per metric with value, debiased estimate, interval ends and noise floor."""
        frame: Any = require("pandas", extra="frames").DataFrame.from_dict(self.numbers(), orient="index")
        return frame.astype(float).rename_axis("metric")

    def plot(self, ax: Any = None) -> Any:
        """Draw the reliability diagram on ``ax``, or on a new figure, and return the axes."""
        if self.suite is None:
            raise InputError("a result that was read from a file or a store has no sums to draw: evaluate again")
        reliability = require("acls.report.figures.reliability", extra="plot")  # above this package, and an extra
        return reliability.plot(self.suite.bins.reliability(), ax, cells=self.suite.confidences.cells())[1]

    def as_json(self) -> dict[str, Any]:
        """Return the plain object that `acls evaluate --json` prints and that stores keep; unknown values are null."""
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
        """Invert `as_json`; the sums are not restored."""
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
    """The result of one trained network, before or after a post-hoc method: one line of a table."""

    method: str
    """The loss as a user would write it, such as ``ACLS(margin=6.0)``, or the name of a file."""
    seed: int | None
    posthoc: str
    """The calibrator, such as ``Temperature``; ``none`` for the network without a calibrator."""
    result: Result
    protocol: Mapping[str, Any]
    """How the metrics were computed: records are comparable if their protocols are equal."""

    @property
    def n(self) -> int:
        return self.result.n

    def as_json(self) -> dict[str, Any]:
        """Return a plain object: ``metrics`` has the numbers by name, as in 0.1.0, and ``result`` the whole result."""
        about = {name: value for name, value in vars(self).items() if name != "result"}
        return {**about, "n": self.n, "metrics": self.result.numbers(), "result": self.result.as_json()}
