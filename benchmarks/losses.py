"""Forward plus backward of every loss, as a ratio to torch's cross-entropy in the same run.

    python benchmarks/losses.py [--no-compile] [--turns 15]

Prints the targets of ACLS first: time eager and under ``torch.compile(loss)``, and peak memory. Exits with 1 if one is
missed. A batch of (128, 10) has no target: there both losses take microseconds, most of them spent outside the loss.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from timing import best_times, verdict
from torch import Tensor, nn

from acls.losses import ACLS, CPC, MMCE, REGISTRY, MbLS

SIZES = [(128, 10), (256, 1000), (500_000, 21)]
EAGER = {(256, 1000): 3.2, (500_000, 21): 1.9}
COMPILED = {(256, 1000): 2.0, (500_000, 21): 1.0}


class Released(nn.Module):
    """The authors' ACLS as it computes, written anew from its formula: plain autograd over full-size tensors."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        largest, _ = z.max(1, keepdim=True)
        is_top = (z == largest).to(z.dtype)
        down = (is_top * F.relu(largest - 6.0) ** 2).sum(1).mean()
        others = (1 - is_top) * F.relu(largest.detach() - z - 6.0) ** 2
        return F.cross_entropy(z, y) + 0.1 * down + 0.01 * (others.sum(1) / (z.shape[1] - 1)).mean()


def batch(n: int, k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = 4 * torch.randn(n, k, generator=generator)
    return z.requires_grad_(), torch.randint(0, k, (n,), generator=generator)


def step(loss: Callable[..., Tensor], z: Tensor, y: Tensor, index: Tensor | None = None) -> None:
    z.grad = None
    (loss(z, y) if index is None else loss(z, y, index)).backward()


def peak_tensors(loss: Callable[..., Tensor], n: int = 20_000, k: int = 100) -> float:
    """The most memory that was allocated at once in a step, in logits-sized buffers."""
    z, y = batch(n, k)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step(loss, z, y)
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / (z.numel() * z.element_size())


def targets(turns: int, compiled: bool) -> bool:
    kept = True
    for n, k in SIZES:
        z, y = batch(n, k)
        acls = ACLS(margin=6.0)
        candidates: dict[str, Any] = {
            "cross-entropy": F.cross_entropy,
            "ACLS": acls,
            "the released ACLS": Released(),
        }
        if compiled:
            torch._dynamo.reset()
            candidates["ACLS, compiled"] = torch.compile(acls)
        times = best_times(
            {name: functools.partial(step, loss, z, y) for name, loss in candidates.items()}, turns=turns
        )
        unit = times.pop("cross-entropy")
        print(f"({n}, {k})  cross-entropy {1e6 * unit:.0f} µs", end="")
        for name, time in times.items():
            limit = {"ACLS": EAGER, "ACLS, compiled": COMPILED}.get(name, {}).get((n, k))
            kept &= limit is None or time / unit <= limit
            print(
                f";  {name} {time / unit:.2f}" if limit is None else f";  {name} {verdict(time / unit, limit)}", end=""
            )
        print()
    plain, ours = peak_tensors(F.cross_entropy), peak_tensors(ACLS(margin=6.0))
    kept &= ours <= plain
    print(f"peak memory in logits: cross-entropy {plain:.2f};  ACLS {verdict(ours, plain)}")
    return kept


def others(turns: int) -> None:
    n_train = 1000
    print("\nevery loss, eager, as a ratio to cross-entropy")
    for n, k in SIZES[:2]:
        z, y = batch(n, k)
        index = torch.randperm(n_train)[:n]
        runs = {"cross-entropy": functools.partial(step, F.cross_entropy, z, y)}
        for name, kind in REGISTRY.items():
            loss = kind()
            loss.prepare(n_train=n_train, n_classes=k)
            runs[name] = functools.partial(step, loss, z, y, index if loss.needs_index else None)
        times = best_times(runs, turns=turns, seconds=0.05)
        unit = times.pop("cross-entropy")
        print(f"({n}, {k})  " + "  ".join(f"{name} {time / unit:.1f}" for name, time in times.items()))
    for loss, n, k in ((MbLS(), 500_000, 21), (CPC(), 256, 1000), (MMCE(), 100_000, 10)):
        z, y = batch(n, k)
        times = best_times(
            {"ce": functools.partial(step, F.cross_entropy, z, y), "loss": functools.partial(step, loss, z, y)},
            turns=max(3, turns // 3),
        )
        print(f"{type(loss).__name__} at ({n}, {k}): {1e3 * times['loss']:.1f} ms, {times['loss'] / times['ce']:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-compile", action="store_true", help="leave out the compiled losses")
    parser.add_argument("--turns", type=int, default=15)
    args = parser.parse_args()
    kept = targets(args.turns, not args.no_compile)
    others(args.turns)
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
