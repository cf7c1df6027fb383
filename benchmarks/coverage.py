"""Do intervals, tests and verdicts hold what they promise? Simulations with known truth, one table.

python benchmarks/coverage.py                                 # quick: 60 data sets in each cell
python benchmarks/coverage.py --full --out tables.md          # 400 in each cell: the tables of docs/coverage.md

Samples have a class y and features x = m e_y + noise, so m x are the logits of a perfectly calibrated model; scenarios
distort them. A cell fails, and the exit code is 1, when the 99 % binomial bound on what was seen is below the promise,
or when the mean width of the interval is above its limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from acls.metrics import Blocks, Suite
from acls.metrics.batch import Batch
from acls.metrics.bins import bin_of
from acls.metrics.cells import Cells
from acls.metrics.distributions import normal_quantile, normal_tail, wilson
from acls.metrics.estimates import LOWEST, estimates, gaps_of
from acls.metrics.ordered import adaptive_ece, ks_error
from acls.metrics.significance import SeedDifference, calibration, compare, ece_difference, over_seeds, ranking
from acls.metrics.smooth import smooth_ece

SHARED = Path(os.environ.get("ACLS_SHARED", Path(__file__).parents[2] / "shared")) / "data" / "logits"
METRICS = ("ece", "aece", "classwise_ece", "ks", "smece")
POPULATION = 400_000
WIDEST = 1.5
ORACLE_SETS = 20_000
TEMPERATURES = (0.5, 0.8, 0.95, 1.5, 3.0)
Sample = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Logits that the model states, labels, and the true probabilities of the classes."""


def calibrated(random: np.random.Generator, n: int, k: int, easy: tuple[float, float] = (1.0, 4.0)) -> Sample:
    """Logits of a calibrated model, more or less sure from sample to sample."""
    labels = random.integers(k, size=n)
    m = random.uniform(*easy, size=(n, 1)).astype(np.float32)
    x = random.standard_normal((n, k), dtype=np.float32)
    x[np.arange(n), labels] += m[:, 0]
    logits = torch.from_numpy(m * x)
    return logits, torch.from_numpy(labels), torch.softmax(logits, 1)


def distorted(sample: Sample, temperature: float = 1.0, bias: float = 0.0) -> Sample:
    """The same samples with logits divided by a temperature, and the first classes favoured."""
    logits, labels, truth = sample
    stated = logits / temperature
    if bias:
        stated = stated + bias * torch.linspace(1, -1, logits.shape[1])
    return stated, labels, truth


def true_values(sample: Sample, bins: int = 15) -> dict[str, float]:
    """The population's errors: true probabilities in the place of labels."""
    logits, _, truth = sample
    q = torch.softmax(logits.double(), 1)
    confidence, predicted = q.max(1)
    right = truth.double().gather(1, predicted[:, None])[:, 0]
    return top_values(confidence, right, bins) | {"classwise_ece": _true_classwise(q, truth.double(), bins)}


def top_values(confidence: torch.Tensor, right: torch.Tensor, bins: int = 15) -> dict[str, float]:
    """The population's errors of the top label."""
    order = confidence.argsort()
    cells = Cells(*(part[order][None] for part in (torch.ones_like(confidence), confidence, right)))
    index = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.bincount(index, confidence - right, bins) / len(confidence)
    return {
        "accuracy": float(right.mean()),
        "ece": float(gap.abs().sum()),
        "rmsce": float(
            (gap**2 / (torch.bincount(index, minlength=bins) / len(confidence)).clamp(min=1e-9)).sum().sqrt()
        ),
        "aece": float(adaptive_ece(cells, bins)[0]),
        "ks": float(ks_error(cells)[0]),
        "smece": float(smooth_ece(cells)[0]),
    }


def oracle_width(sample: Sample, n: int, *, weighted: bool, bins: int = 15) -> float:
    """The width of an interval of the ECE that knows its bias and its spread over data sets of n of these samples.

    The spread is that of 20,000 data sets, known to 0.5 %; that of the 400 of a cell would be known to 3.5 %.
    """
    logits, _, truth = sample
    confidence, predicted = torch.softmax(logits, 1).max(1)
    right = truth.gather(1, predicted[:, None])[:, 0].numpy()
    sure = confidence.numpy()
    index, random, values = bin_of(confidence, bins).numpy(), _rng(3, n), []
    at_once = 1_000_000 // n
    for _ in range(ORACLE_SETS // at_once):
        drawn = random.integers(len(sure), size=at_once * n)
        gap = sure[drawn] - (random.random(at_once * n, dtype=np.float32) < right[drawn])
        weight = random.lognormal(0, 0.8, at_once * n) if weighted else np.ones(at_once * n)
        place = index[drawn] + bins * np.repeat(np.arange(at_once), n)
        total = np.bincount(place, weight, at_once * bins).reshape(at_once, bins).sum(1)
        values.append(np.abs(np.bincount(place, weight * gap, at_once * bins)).reshape(at_once, bins).sum(1) / total)
    return 2 * normal_quantile() * float(np.std(np.concatenate(values)))


def _true_classwise(q: torch.Tensor, truth: torch.Tensor, bins: int) -> float:
    n, k = q.shape
    index = ((q * bins).ceil().long().clamp(1, bins) - 1) + bins * torch.arange(k)
    gap = torch.bincount(index.flatten(), (q - truth).flatten(), bins * k)
    return float(gap.abs().sum()) / n / k


@dataclass
class Table:
    """Cells of the table, each with what it promises."""

    rows: dict[str, list[list[str]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def add(self, part: str, *row: str) -> None:
        """Take one more row, and show it at once."""
        self.rows.setdefault(part, []).append(list(row))
        print(f"{part}: " + " | ".join(row), flush=True)

    def at_least(self, name: str, hits: int, n: int, promise: float) -> str:
        """A coverage; it fails where its upper bound is below the promise."""
        share = hits / n
        if wilson(share, n, 0.98)[1] < promise:
            self.failed.append(f"{name}: {share:.3f} of {n}, at least {promise} promised")
            return f"**{share:.3f}**"
        return f"{share:.3f}"

    def at_most(self, name: str, hits: int, n: int, promise: float) -> str:
        """A rate of errors; it fails where its lower bound is above the promise."""
        share = hits / n
        if wilson(share, n, 0.98)[0] > promise:
            self.failed.append(f"{name}: {share:.3f} of {n}, at most {promise} promised")
            return f"**{share:.3f}**"
        return f"{share:.3f}"

    def markdown(self, heads: dict[str, tuple[str, list[str]]]) -> str:
        """All tables, with a sentence each."""
        text = []
        for part, (sentence, head) in heads.items():
            if part in self.rows:
                lines = [head, ["---"] * len(head), *self.rows[part]]
                text += [f"## {part}", "", sentence, "", *("| " + " | ".join(line) + " |" for line in lines), ""]
        return "\n".join(text)


def intervals(
    table: Table,
    name: str,
    sets: int,
    make: Callable[[int], tuple[Suite, Blocks] | tuple[Suite, None]],
    truth: dict[str, float],
    promise: float,
    oracle: float = 0.0,
) -> None:
    """One row: coverage of the true values, the width beside an oracle's, how often tests say miscalibrated."""
    zero = not truth
    hits, printed, inside = dict.fromkeys(METRICS, 0), dict.fromkeys(METRICS, 0), 0
    widths: dict[str, list[float]] = {metric: [] for metric in METRICS}
    values, said, by_spiegelhalter = [], 0, 0
    for number in range(sets):
        suite, blocks = make(number)
        found = estimates(suite, blocks)
        for metric in METRICS:
            one = found.get(metric)
            if one is not None and one.low is not None and one.high is not None:
                printed[metric] += 1
                hits[metric] += one.low <= truth.get(metric, 0.0) <= one.high
                inside += not one.low <= one.value <= one.high
                widths[metric].append(one.high - one.low)
        values.append(found["ece"].value)
        verdict = calibration(suite, blocks, replicates=199, floors=False)
        said += verdict.p < 0.05
        by_spiegelhalter += verdict.tests["spiegelhalter"].p < 0.05
    if inside:
        table.failed.append(f"{name}: {inside} values outside their own intervals")
    cover = [
        table.at_least(f"{name}, {metric}", hits[metric], printed[metric], promise) if printed[metric] else "none"
        for metric in METRICS
    ]
    if zero:
        table.add(
            "Calibrated models",
            name,
            *cover,
            table.at_most(f"{name}, verdict", said, sets, 0.06),
            f"{by_spiegelhalter / sets:.3f}",
        )
    else:
        mean, width = float(np.mean(values)), float(np.mean(widths["ece"]))
        ratio = width / oracle
        shown = f"{100 * width:.2f} ({ratio:.2f})"
        if "n = 200" not in name and ratio > WIDEST:
            table.failed.append(f"{name}: the ECE's interval is {ratio:.2f} times as wide as the oracle's")
            shown = f"**{shown}**"
        power = f"{said / sets:.2f} / {by_spiegelhalter / sets:.2f}"
        if (
            said / sets < by_spiegelhalter / sets
            and wilson(said / sets, sets, 0.98)[1] < wilson(by_spiegelhalter / sets, sets, 0.98)[0]
        ):
            table.failed.append(f"{name}: the verdict finds {power}")
        table.add("Miscalibrated models", name, f"{100 * truth['ece']:.2f}", f"{100 * mean:.2f}", *cover, shown, power)


def made(i: int, n: int, k: int, easy: tuple[float, float] = (1.0, 4.0), **distortion: float) -> tuple[Suite, None]:
    """Data set number i of a scenario."""
    logits, labels, _ = distorted(calibrated(_rng(i, k, n), n, k, easy), **distortion)
    return Suite.of(logits, labels, classwise=True, redraw=True), None


def weighted(i: int, n: int, k: int, **distortion: float) -> tuple[Suite, Blocks]:
    """Data set number i of a scenario, whose rows have weights that say nothing: as if about half of them counted."""
    random = _rng(i, k, n, 1)
    logits, labels, _ = distorted(calibrated(random, n, k), **distortion)
    weight = torch.from_numpy(random.lognormal(0, 0.8, n))
    batch = Batch.of(logits, labels, kind="logits", sample_weight=weight)
    return Suite.count(batch, classwise=True), Blocks.count(batch)


def run_calibrated(table: Table, sets: int) -> None:
    """Calibrated models."""
    for k in (2, 10, 100):
        for n in (200, 1000, 10_000):
            intervals(table, f"K = {k}, n = {n}", sets, partial(made, n=n, k=k), {}, 0.93)
    rare = partial(made, n=200, k=10, easy=(4.5, 5.5))  # 99 % right
    intervals(table, "rare errors, K = 10, n = 200", sets, rare, {}, 0.93)
    for n in (200, 1000, 10_000):
        intervals(table, f"weighted rows, K = 10, n = {n}", sets, partial(weighted, n=n, k=10), {}, 0.93)


def run_miscalibrated(table: Table, sets: int) -> None:
    """Temperatures and a class bias."""
    for label, options in [(f"T = {t}", {"temperature": t}) for t in TEMPERATURES] + [("class bias", {"bias": 0.5})]:
        for k in (2, 10, 100):
            population = distorted(calibrated(_rng(7), POPULATION if k <= 10 else POPULATION // 4, k), **options)
            truth = true_values(population)
            for n in (200, 1000, 10_000) if k == 10 else (1000,):  # the time
                make = partial(made, n=n, k=k, **options)
                name, promise = f"{label}, K = {k}, n = {n}", 0.92 if n >= 1000 else 0.90
                intervals(table, name, sets, make, truth, promise, oracle_width(population, n, weighted=False))
            if label == "T = 0.8" and k == 10:
                make_weighted = partial(weighted, n=1000, k=k, **options)
                name, oracle = (
                    f"{label}, weighted rows, K = {k}, n = 1000",
                    oracle_width(population, 1000, weighted=True),
                )
                intervals(table, name, sets, make_weighted, truth, 0.92, oracle)


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng([19, *key])


def redrawn(random: np.random.Generator, probs: torch.Tensor) -> torch.Tensor:
    """Labels from the model's own probabilities."""
    sums = probs.double().cumsum(1)
    place = torch.from_numpy(random.random((len(probs), 1))) * sums[:, -1:]
    return torch.searchsorted(sums, place, right=True).clamp(max=probs.shape[1] - 1)[:, 0]


def run_real(table: Table, sets: int) -> None:
    """Real networks' outputs with labels drawn from their own probabilities."""
    files = {"ResNet-20": "cifar10_akamaster_resnets.npz", "DenseNet-121": "cifar10_widmann_14nets_probs.npz"}
    for name, file in files.items():
        if not (SHARED / file).is_file():
            print(f"{name}: no file {file}, left out")
            continue
        with np.load(SHARED / file) as held:
            if name == "ResNet-20":
                probs = torch.softmax(torch.from_numpy(held["resnet20"]).float(), 1)
            else:
                models = [str(one) for one in held["models"]]
                probs = torch.from_numpy(held["probs"][models.index("densenet121")]).float()
                probs = probs / probs.sum(1, keepdim=True)
        for n in (200, 1000, 10_000):

            def make(i: int, n: int = n, probs: torch.Tensor = probs) -> tuple[Suite, None]:
                random = _rng(i, n)
                rows = probs[torch.from_numpy(random.permutation(len(probs))[:n])]
                return Suite.of(rows, redrawn(random, rows), kind="probs", classwise=True, redraw=True), None

            intervals(table, f"{name}, n = {n}", sets, make, {}, 0.93)
    file = SHARED / "voc2012_espnetv2_pixels.npz"
    if not file.is_file():
        print("VOC pixels: no file, left out")
        return
    with np.load(file) as held:
        probs = torch.softmax(torch.from_numpy(held["logits"]).float(), 1)
        image = torch.from_numpy(held["image_index"]).long()
    for images in (20, 60, 200):

        def by_image(i: int, images: int = images) -> tuple[Suite, Blocks]:
            random = _rng(i, images)
            chosen = torch.from_numpy(random.permutation(int(image.max()) + 1)[:images])
            inside = torch.isin(image, chosen).nonzero()[:, 0][::4]
            rows = probs[inside]
            batch = Batch.of(rows, redrawn(random, rows), kind="probs")
            return Suite.count(batch), Blocks.count(batch, unit=image[inside])

        intervals(table, f"VOC pixels, {images} images of 100", sets, by_image, {}, 0.93)


def equal_ece(
    make: Callable[[float], Sample | tuple[torch.Tensor, torch.Tensor]], target: float, low: float, high: float
) -> float:
    """The setting between two at which the population's ECE is the target; the ECE rises from low to high."""

    def ece(setting: float) -> float:
        stated = make(setting)
        if len(stated) == 2:
            confidence, right = stated
        else:
            confidence, predicted = torch.softmax(stated[0].double(), 1).max(1)
            right = stated[2].double().gather(1, predicted[:, None])[:, 0]
        index = (confidence * 15).ceil().long().clamp(1, 15) - 1
        return float(torch.bincount(index, confidence - right, 15).abs().sum()) / len(confidence)

    for _ in range(18):
        middle = (low + high) / 2
        low, high = (middle, high) if ece(middle) < target else (low, middle)
    return (low + high) / 2


def run_paired(table: Table, sets: int) -> None:
    """Two models on the same samples: equal in ECE, or not."""
    large = calibrated(_rng(7), POPULATION // 2, 10)

    def temperatures(one: float, other: float) -> Callable[[np.random.Generator, int], tuple[Sample, Sample]]:
        def make(random: np.random.Generator, n: int) -> tuple[Sample, Sample]:
            sample = calibrated(random, n, 10)
            return distorted(sample, one), distorted(sample, other)

        return make

    def both_calibrated(random: np.random.Generator, n: int) -> tuple[Sample, Sample]:
        labels = random.integers(10, size=n)
        pair = []
        for m in (1.75, 3.3):  # accuracy .60 and .94
            x = random.standard_normal((n, 10), dtype=np.float32)
            x[np.arange(n), labels] += m
            logits = torch.from_numpy(np.float32(m) * x)
            pair.append((logits, torch.from_numpy(labels), torch.softmax(logits, 1)))
        return pair[0], pair[1]

    true = 0.5 + 0.45 * torch.from_numpy(_rng(5).random(POPULATION // 2))

    def shifted(setting: float, true: torch.Tensor = true) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.where(true < 0.7, true + setting, true), true

    shift = equal_ece(shifted, top_values(true + 0.04, true)["ece"], 0.04, 0.2)

    def squares_apart(random: np.random.Generator, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        true = 0.5 + 0.45 * torch.from_numpy(random.random(n))
        right = torch.from_numpy(random.random(n)) < true
        return true + 0.04, shifted(shift, true)[0], right

    pairs: dict[str, tuple[object, bool]] = {}
    for one in (0.8, 0.9):
        wanted = true_values(distorted(large, one))["ece"]
        other = equal_ece(lambda setting: distorted(large, setting), wanted, 1.0, 2.5)
        pairs[f"equal ECE, T = {one} and {other:.3f}"] = temperatures(one, other), True
    pairs["both calibrated, accuracy .60 and .94"] = both_calibrated, True
    pairs["equal ECE, squared errors a factor of two apart"] = squares_apart, True
    pairs |= {
        f"T = {one} against {other}": (temperatures(one, other), False)
        for one, other in ((0.8, 0.95), (0.8, 0.7), (1.0, 0.9))
    }
    for name, (make, null) in pairs.items():
        for n in (1000, 10_000):
            rejected = dict.fromkeys(("ece", "aece", "rmsce", "bounded both ways"), 0)
            for i in range(sets):
                both = _pair(make(_rng(i, n), n))  # type: ignore[operator]
                found = compare(*both)
                for metric in ("ece", "aece", "rmsce"):
                    p = found[metric].p
                    rejected[metric] += p is not None and p < 0.05
                rejected["bounded both ways"] += _bounded(both) < 0.05
            cells = []
            for metric, times in rejected.items():
                tests_it = null and (metric in ("ece", "aece") or (metric == "rmsce" and "squared" not in name))
                # Equal ECE over bins of equal width is nearly, not exactly, equal over bins of equal mass, and in RMS.
                strict = metric == "ece" or (tests_it and name.startswith("both"))
                cells.append(
                    table.at_most(f"{name}, n = {n}, {metric}", times, sets, 0.07)
                    if null and strict
                    else f"{times / sets:.3f}"
                )
            table.add("Two models on the same samples", name, str(n), *cells)


def _pair(made: tuple[object, ...]) -> tuple[tuple[Suite, Blocks], tuple[Suite, Blocks]]:
    if len(made) == 2:
        batches = [Batch.of(logits, labels, kind="logits") for logits, labels, _ in made]  # type: ignore[misc]
    else:
        one, other, right = made
        ones = torch.ones(len(right), dtype=torch.long)  # type: ignore[arg-type]
        batches = [Batch.of_triples(confidence, ones, right.long()) for confidence in (one, other)]  # type: ignore
    first, second = ((Suite.count(batch), Blocks.count(batch)) for batch in batches)
    return first, second


def _bounded(both: tuple[tuple[Suite, Blocks], tuple[Suite, Blocks]]) -> float:
    """The p of a difference that allows for all that the bias may be, 0 to E|N|, of either model."""
    values, most = [], []
    for suite, _ in both:
        gaps = gaps_of(suite)
        values.append(suite.bins.ece)
        most.append(gaps.bias(1e6))
    found = ece_difference(*both)
    assert found.low is not None
    assert found.high is not None
    sd = (
        found.high - found.low - sum(gaps_of(suite).bias(LOWEST) - gaps_of(suite).bias(0.0) for suite, _ in both)
    ) / 3.92
    d = values[0] - values[1]
    return normal_tail(max(d - most[0], -d - most[1], 0.0) / sd) if max(d - most[0], -d - most[1]) > 0 else 1.0


def run_ranking(table: Table, sets: int) -> None:
    """Methods trained with several seeds and tested on the same samples: who is marked, who differs from the first."""
    for scenario in ("18 equal", "17 equal, one better", "17 equal, one noisy", "17 equal, one better, one noisy"):
        for seeds in (2, 3, 5):
            false = marked = found = 0
            for i in range(sets):
                random = _rng(i, seeds, len(scenario))
                m = 18
                mean, spread = np.zeros(m), np.full(m, 0.005)
                if "better" in scenario:
                    mean[5] = -0.03
                if "noisy" in scenario:
                    spread[9] = 0.025
                by_samples = random.normal(0, 0.003, size=m)
                values = mean[:, None] + by_samples[:, None] + random.normal(size=(m, seeds)) * spread[:, None]
                named = {str(j): dict(enumerate(values[j])) for j in range(m)}

                def pair(one: str, other: str, level: float, values: np.ndarray = values) -> SeedDifference:
                    return over_seeds(values[int(one)], values[int(other)], 0.003 * 2**0.5, level=level)

                result = ranking(named, pair)
                assert result is not None
                mark = result.p < 0.05
                wrong = mark and mean[int(result.best)] == 0
                wrong |= any(d.p < 0.05 and mean[int(name)] == 0 for name, d in result.to_baseline.items())
                false += bool(wrong)
                marked += mark and mean[int(result.best)] < 0
                found += "5" in result.to_baseline and result.to_baseline["5"].p < 0.05
            better = "better" in scenario
            table.add(
                "Ranking",
                scenario,
                str(seeds),
                table.at_most(f"{scenario}, {seeds} seeds", false, sets, 0.06),
                f"{marked / sets:.2f}" if better else "",
                f"{found / sets:.2f}" if better else "",
            )


HEADS = {
    "Calibrated models": (
        "Share of data sets whose interval holds 0, promised .93; the verdict errs in at most .06 of them.",
        [
            "model",
            "ECE",
            "adaptive ECE",
            "classwise ECE",
            "KS",
            "SmoothECE",
            "verdict: miscalibrated",
            "Spiegelhalter p < .05",
        ],
    ),
    "Miscalibrated models": (
        "Share of data sets whose interval holds the population's value, promised .92, and .90 at n = 200. Widths of "
        "the ECE's interval are in points, in brackets as a multiple of an oracle's, which knows bias and spread; "
        "power is that of the verdict and of Spiegelhalter's test of the top label.",
        [
            "model",
            "true ECE %",
            "mean ECE %",
            "ECE",
            "adaptive ECE",
            "classwise ECE",
            "KS",
            "SmoothECE",
            "width",
            "power",
        ],
    ),
    "Two models on the same samples": (
        "Share of data sets with p < .05; at most .07 for ECE in the first four scenarios.",
        ["models", "n", "ECE", "adaptive ECE", "RMS", "ECE, bias bounded both ways"],
    ),
    "Ranking": (
        "Family-wise error, at most .06: the wrong method is marked best, or one as good as the baseline is found "
        "different. Then how often the better one is marked best, and found different from the baseline.",
        ["methods", "seeds", "family-wise error", "marked best", "differs from the baseline"],
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="400 data sets in each cell")
    parser.add_argument("--sets", type=int, help="data sets in each cell")
    parser.add_argument("--only", choices=["calibrated", "real", "miscalibrated", "paired", "ranking"])
    parser.add_argument("--out", type=Path, help="write the tables here, as markdown")
    args = parser.parse_args()
    sets = args.sets or (400 if args.full else 60)
    torch.set_num_threads(1)
    table, start = Table(), time.time()
    parts = {
        "calibrated": run_calibrated,
        "real": run_real,
        "miscalibrated": run_miscalibrated,
        "paired": run_paired,
        "ranking": run_ranking,
    }
    for name, part in parts.items():
        if args.only in (None, name):
            part(table, sets)
            if args.out is not None:
                args.out.write_text(f"{table.markdown(HEADS)}\n{sets} data sets in each cell, seed 19.\n", "utf-8")
    print(
        "\n".join(
            ["", *table.failed, f"{len(table.failed)} cells failed; {sets} data sets each, {time.time() - start:.0f} s"]
        )
    )
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
