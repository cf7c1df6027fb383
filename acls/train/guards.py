"""Guards around a run: the error that stops it, signals, and the caller's random state and threads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from acls import distributed


class TrainingStopped(RuntimeError):
    """Training cannot continue. The message says why, what was saved and what to try. The exit code is 1."""


@contextmanager
def interruptions() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set, to finish the step and save; a second signal stops immediately.

    Signals are not changed outside the main thread, or if several processes train: they would stop at different steps.
    """
    event = threading.Event()
    if distributed.world() > 1 or threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: Any) -> None:  # noqa: ARG001
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    try:
        for number in before:
            signal.signal(number, note)
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def isolated(threads: int | None = None) -> Iterator[None]:
    """Compute with this many threads (None: the current number), then restore the caller's threads and random state.

    A run seeds the global generator of torch, which dropout uses.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        torch.set_num_threads(before)
