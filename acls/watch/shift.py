"""Shift: measure accuracy and calibration on corrupted test images, and check whether the temperature still fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from acls.calibrators import Temperature
from acls.data import DataOptions
from acls.data.corruptions import CORRUPTIONS, SEVERITIES, Corrupt, Corrupted, Corruption
from acls.data.dataset import Part, SampleBatch
from acls.data.keyed_random import generator
from acls.errors import InputError
from acls.metrics.catalogue import in_percent
from acls.metrics.significance import Difference
from acls.models import CATALOGUE, ModelOptions
from acls.predictions import Predictions
from acls.recipes import find
from acls.results import Counts, differences, effect
from acls.shapes import IGNORE_INDEX
from acls.shown import Shown
from acls.train.evaluate import Sample, open_weights
from acls.train.session import Session

CLEAN = "none"
_REPLICATES = 200


@dataclass(frozen=True)
class Condition:
    """The metrics for the clean test images (corruption "none", severity 0) or for corrupted ones."""

    corruption: str
    severity: int
    n: int
    accuracy: float
    nll: float
    ece: float
    ece_floor: float
    """The ECE that a calibrated model with these confidences would have at this n."""
    scaled_ece: float
    """The ECE after scaling with the temperature that was fitted on the clean validation part."""
    scaled_floor: float
    scaled_ceiling: float
    """The largest scaled ECE that noise alone explains, in 95 of 100 cases."""
    scaled_nll: float
    fitting_temperature: float
    """The temperature that would fit here."""
    change: Difference | None
    """The scaled ECE minus the ECE, tested on the same samples."""

    @property
    def verdict(self) -> str:
        """The effect of the clean temperature: "holds" if the ECE is within noise, else by `acls.results.effect`."""
        return "holds" if self.scaled_ece <= self.scaled_ceiling else effect(self.change)


@dataclass(frozen=True, repr=False)
class Shift(Shown):
    """All conditions, the clean one first, and the temperature fitted on the clean validation part."""

    temperature: float
    conditions: tuple[Condition, ...]
    dense: bool = False
    """Whether rows are pixels. Pixels are not independent, so the noise floors are too low for them."""

    def verdict(self) -> str:
        """Return a summary in words: how many conditions stay calibrated, and which is the worst."""
        shifted = [one for one in self.conditions if one.corruption != CLEAN]
        if not shifted:
            return f"Nothing was corrupted; the temperature is {self.temperature:.3f}."
        counts = Counter(one.verdict for one in shifted)
        chance = f" Of {counts['maybe']} the ECE changes by no more than chance." if counts["maybe"] else ""
        worst = max(shifted, key=lambda one: one.scaled_ece)
        return (
            f"Of {len(shifted)} conditions the clean temperature {self.temperature:.3f} keeps {counts['holds']} "
            f"calibrated, lowers the ECE of {counts['helps']} but not to within noise, and raises that of "
            f"{counts['hurts']}.{chance} The worst is {worst.corruption} {worst.severity}, with an ECE of "
            f"{in_percent(worst.scaled_ece)} at that temperature."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the temperature, the verdict and the conditions as a dictionary for JSON."""
        rows = [{**asdict(one), "verdict": one.verdict} for one in self.conditions]
        return {"temperature": self.temperature, "verdict": self.verdict(), "conditions": rows}


def sweep(
    outputs: Callable[[Corrupt | None], Iterable[SampleBatch]],
    temperature: float,
    corruptions: Sequence[Corruption],
    *,
    samples: int,
    void: int = IGNORE_INDEX,
) -> Iterator[Condition]:
    """Yield the conditions one by one, the clean one first.

    ``outputs(corrupt)`` returns batches of (logits, target, index) of ``samples`` test samples, after
    ``corrupt(images, index)`` was applied to their images in 0..1. ``corrupt`` is None for clean images.
    """
    for one in (None, *corruptions):
        counts = {name: Counts(compare=True, by_image=False) for name in ("plain", "scaled")}
        sample = Sample(samples)
        for logits, target, index in outputs(one):
            for own, z in zip(counts.values(), (logits, logits / temperature), strict=True):
                own.add(Predictions.dense(z, target, "logits", ignore_index=void))
            sample.add(logits, target, index)
        results = {name: own.result(replicates=_REPLICATES) for name, own in counts.items()}
        plain, scaled = results.values()
        yield Condition(
            corruption=one.name if one else CLEAN,
            severity=one.severity if one else 0,
            n=plain.n,
            **{name: plain[name] for name in ("accuracy", "nll", "ece")},
            ece_floor=plain.floors["ece"].mean,
            **{f"scaled_{name}": scaled[name] for name in ("nll", "ece")},
            scaled_floor=scaled.floors["ece"].mean,
            scaled_ceiling=scaled.floors["ece"].high,
            fitting_temperature=_temperature(sample, void),
            change=differences(results).comparisons.get("scaled", {}).get("ece"),
        )


def of_model(
    path: str | Path,
    *,
    data: DataOptions | None = None,
    model: ModelOptions | None = None,
    corruptions: Sequence[str] = tuple(CORRUPTIONS),
    severities: Sequence[int] = SEVERITIES,
    limit: int | None = None,
    seed: int = 0,
    note: Callable[[Condition], None] = lambda _: None,
) -> Shift:
    """Corrupt the test part of a run, or of ``data``, and evaluate the run's network or the one given by ``model``.

    ``limit`` is the number of test samples to draw with the seed. ``note`` is called with each condition.
    """
    chosen = [Corruption(name, level, seed) for name in corruptions for level in severities]  # raises before any work
    with torch.random.fork_rng():
        session = open_network(path, data=data, model=model)
        test, settings = session.data.test, session.recipe.data
        if test[0][0].ndim != 3:
            raise InputError(f"corruptions are for images, but {settings.name} has none")
        if limit is not None and limit < len(test):
            drawn = torch.randperm(len(test), generator=generator(seed))[:limit].sort().values
            test = Part(test.source, test.chosen[drawn])
        validation = Sample(len(session.data.val))
        for batch in session.outputs(session.data.val, passes=session.recipe.passes):
            validation.add(*batch)
        temperature = _temperature(validation, session.data.void)

        def outputs(corrupt: Corrupt | None) -> Iterator[SampleBatch]:
            source = test.source if corrupt is None else Corrupted(test.source, corrupt, settings.normalise)
            return session.outputs(Part(source, test.chosen), passes=session.recipe.passes)

        conditions = []
        for one in sweep(outputs, temperature, chosen, samples=len(test), void=session.data.void):
            conditions.append(one)
            note(one)
    return Shift(temperature, tuple(conditions), session.data.segmentation)


def is_network(name: str | Path) -> bool:
    """Return whether this is the name of a network and not a run."""
    return str(name) in CATALOGUE or str(name).startswith("timm/")


def open_network(path: str | Path, *, data: DataOptions | None, model: ModelOptions | None) -> Session:
    """Return the session of a run with its best weights, of a weights file in a run, or of a network by name."""
    if is_network(path):
        if data is None or model is None:
            raise InputError(f"{path} is a network, not a run: pass the data too, as in --data folder --root IMAGES")
        base = find("custom_segmentation" if "segmentation" in data.name or data.name == "voc" else "custom")
        return Session(replace(base, data=data, model=replace(model, name=str(path))))
    place = Path(path)
    if not place.exists():
        raise InputError(f"there is no run or checkpoint {place}, and no network of that name")
    return open_weights(place, data)[0]


def _temperature(sample: Sample, void: int) -> float:
    return float(Temperature().fit(*sample.rows(void)).temperature)
