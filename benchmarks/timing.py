"""Timing that others' work on the machine disturbs least: candidates take turns, and the best of many turns counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def best_times(
    candidates: Mapping[str, Callable[[], object]], *, turns: int = 15, seconds: float = 0.1
) -> dict[str, float]:
    """Return each candidate's best seconds a call; in each turn every one runs for about ``seconds``."""
    calls = {}
    for name, run in candidates.items():
        run()  # warm up, and compile what is compiled
        start = time.perf_counter()
        run()
        calls[name] = max(1, int(seconds / max(time.perf_counter() - start, 1e-9)))
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(turns):
        for name, run in candidates.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                run()
            best[name] = min(best[name], (time.perf_counter() - start) / calls[name])
    return best


def verdict(value: float, limit: float) -> str:
    """Say whether a ratio keeps its target."""
    return f"{value:6.2f} {'PASS' if value <= limit else 'FAIL'} (target {limit:g})"
