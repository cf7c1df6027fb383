"""What surrounds a run: why it stopped, signals, and the caller's random state and threads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from acls import distributed


class TrainingStopped(RuntimeError):
    """Training cannot go on; the message says why, what is kept, and what to try. The command line exits with 1."""


@contextmanager
def interruptions() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set: the step is finished and the state saved; a second one stops at once.

    Left alone where several processes train, which would not stop at the same step, and outside the main thread.
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
    """Compute with this many threads (None: as many as now), and give the caller's number and random state back.

    A run seeds torch's global generator, which dropout draws from.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        torch.set_num_threads(before)
