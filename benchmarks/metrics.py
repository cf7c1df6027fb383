"""The metrics against their peers, in one run: ratios of time, and memory over a long stream.

python benchmarks/metrics.py            # times at three sizes, one thread
python benchmarks/metrics.py --stream   # 100 million positions in batches: memory stays where it is
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import warnings
from collections.abc import Callable

import torch
from timing import best_times, verdict

from acls.metrics import Suite
from acls.vision import torchvision

SIZES = ((10_000, 10), (50_000, 1000), (2_000_000, 21))
SOFTMAX_LIMIT = {(50_000, 1000): {"softmax and max": 1.6}, (2_000_000, 21): {"softmax and max": 1.6}}


def predictions(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits like a trained network's, overconfident, with three of four labels right."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(n, k, generator=random) * 2
    target = torch.randint(0, k, (n,), generator=random)
    right = torch.rand(n, generator=random) < 0.75
    logits[torch.arange(n)[right], target[right]] += 8
    return logits, target


def peers(logits: torch.Tensor, target: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What others offer for a part of what Suite does."""
    torchvision()  # before what imports it
    import relplot
    from netcal.metrics import ECE
    from torch_uncertainty.metrics.classification import AdaptiveCalibrationError
    from torchmetrics.classification import MulticlassCalibrationError

    k, labels = logits.shape[1], target.numpy()

    def by_torchmetrics() -> object:
        metric = MulticlassCalibrationError(k, n_bins=15)
        metric.update(logits, target)
        return metric.compute()

    def by_torch_uncertainty() -> object:
        metric = AdaptiveCalibrationError(task="multiclass", num_classes=k, num_bins=15)
        metric.update(torch.softmax(logits, 1), target)
        return metric.compute()

    def by_netcal() -> object:
        return ECE(15).measure(torch.softmax(logits, 1).numpy(), labels)

    def by_relplot() -> object:
        confidence, predicted = torch.softmax(logits, 1).max(1)
        return relplot.smECE(confidence.double().numpy(), (predicted == target).double().numpy())

    return {
        "torchmetrics ECE": by_torchmetrics,
        "torch-uncertainty adaptive ECE": by_torch_uncertainty,
        "netcal ECE": by_netcal,
        "relplot SmoothECE": by_relplot,
    }


def own(logits: torch.Tensor, target: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The Suite from scores to all numbers, and what it is held against."""
    return {
        "Suite, all of the top label": lambda: Suite.of(logits, target).summary(),
        "Suite with classwise": lambda: Suite.of(logits, target, classwise=True).summary(),
        "softmax and max": lambda: torch.softmax(logits, 1).max(1),
    }


def times(turns: int) -> bool:
    kept = True
    for n, k in SIZES:
        logits, target = predictions(n, k)
        best = best_times(own(logits, target) | peers(logits, target), turns=turns, seconds=0.05)
        ours = best["Suite, all of the top label"]
        print(f"\n{n} samples, {k} classes (best of {turns} turns, one thread)")
        print(f"  {'':32s} {'ms':>9s}  Suite's time over its")
        for name, seconds in best.items():
            print(f"  {name:32s} {1000 * seconds:9.2f}  {ours / seconds:9.2f}")
        limits = {"torchmetrics ECE": 1.0} | SOFTMAX_LIMIT.get((n, k), {})
        for name, limit in limits.items():
            print(f"  Suite / {name:18s} {verdict(ours / best[name], limit)}")
            kept &= ours <= limit * best[name]
    return kept


def stream(positions: int, batch: int = 200_000, k: int = 21) -> bool:
    """Add up that many positions; the peak of memory must not grow after the first tenth."""
    random = torch.Generator().manual_seed(0)
    total: Suite | None = None
    peaks: list[float] = []
    start = time.perf_counter()
    batches = positions // batch
    for number in range(batches):
        logits = torch.randn(batch, k, generator=random) * 3
        suite = Suite.of(logits, torch.randint(0, k, (batch,), generator=random))
        total = suite if total is None else total + suite
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        if (number + 1) % max(1, batches // 10) == 0:
            seconds = time.perf_counter() - start
            print(f"  {(number + 1) * batch:>11d} positions  peak {peaks[-1]:7.1f} MB  {seconds:6.1f} s", flush=True)
    assert total is not None
    saved = sum(tensor.nbytes for tensor in total.tensors().values()) / 2**20
    summary = total.summary()
    print(f"  saved {saved:.2f} MB; n {summary['n']}, aece {summary['aece']:.6f} ± {summary['aece_bound']:.1e}")
    grown = max(0.0, peaks[-1] - peaks[len(peaks) // 10])
    print(f"  MB grown after the first tenth {verdict(grown, 16.0)}")
    return grown <= 16.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", action="store_true", help="memory over 100 million positions instead of times")
    parser.add_argument("--positions", type=int, default=100_000_000)
    parser.add_argument("--turns", type=int, default=9)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    return 0 if (stream(args.positions) if args.stream else times(args.turns)) else 1


if __name__ == "__main__":
    sys.exit(main())
