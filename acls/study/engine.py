"""Where the work of a study is done: ``engine.map(function, tasks)``, in processes of this machine or on a Ray cluster.

Both give the same results: a task runs with the same number of threads, whoever runs it. A worker that dies in a task,
by a signal or for want of memory, is replaced and the task tried again, so tasks go on where they were rather than
start over. What a task itself raises is raised here, and ends the rest.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, TypeVar

import torch

from acls.errors import InputError, WorkerLost, suggest

T = TypeVar("T")
R = TypeVar("R")
_log = logging.getLogger(__name__)

ENGINES = ("local", "ray")
TRIES = 3
"""How often a task is begun at most."""
GRACE = 30.0
"""Seconds that interrupted tasks have to save their state."""


class TaskFailed(RuntimeError):
    """The worker's traceback, as the cause of the error that a task raised."""


@dataclass(frozen=True)
class Engine(ABC):
    """Maps a function over tasks; both must be picklable, the function by its name in a module."""

    workers: int
    threads: int
    """Of each worker."""

    @abstractmethod
    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Generator[tuple[int, R], None, None]:
        """Give the number of each task with its result, as they finish.

        Whoever stops iterating, by Ctrl-C or an error, interrupts the tasks under way, which may save their state.
        """


def make_engine(name: str = "local", *, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine of that name, by default with a worker for every core and one thread each.

    Fewer workers have more threads each, unless OMP_NUM_THREADS says how many. The number of threads does not depend on
    that of the tasks: what was computed before a break and what is computed after it have the same bits.
    """
    if name not in ENGINES:
        raise InputError(f"there is no engine {name!r}{suggest(name, ENGINES)}")
    if workers is not None and workers < 1:
        raise InputError(f"--workers: expected 1 or more, got {workers}")
    if address is not None and name != "ray":
        raise InputError("--address is that of a Ray cluster: add --engine ray")
    if name == "ray":
        from acls.study.cluster import Ray

        return Ray.make(workers, address)
    workers = workers or len(_gpus()) or cores()
    return Local(workers, threads_each(workers))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Local(Engine):
    """Processes of this machine, each with a pipe to this one; on a machine with GPUs each has one to itself."""

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Generator[tuple[int, R], None, None]:
        idle: list[_Worker] = []
        busy: dict[Any, tuple[_Worker, int]] = {}

        def begin(number: int) -> None:
            taken = {worker.slot for worker in (*idle, *(worker for worker, _ in busy.values()))}
            worker = idle.pop() if idle else _Worker(function, min({*range(self.workers)} - taken), self.threads)
            busy[worker.pipe] = worker, number
            with contextlib.suppress(BrokenPipeError):  # one that is dead already is found so when asked for a result
                worker.pipe.send(tasks[number])

        def finished() -> Iterator[tuple[int, Any]]:
            # A pipe shows who is done and who is dead: that of a dead worker is at its end.
            for worker, number in [busy[pipe] for pipe in connection.wait(list(busy))]:
                try:
                    well, value, trace = pickle.loads(worker.pipe.recv_bytes())
                except (EOFError, OSError):
                    del busy[worker.pipe]
                    code = worker.stop(0) or 0
                    yield number, Lost(f"signal {-code}" if code < 0 else f"exit code {code}")
                    continue
                idle.append(worker)
                del busy[worker.pipe]
                if not well:
                    raise value from TaskFailed(f"\n{trace}")
                yield number, value

        try:
            yield from work_off(begin, finished, len(tasks), self.workers)
        finally:
            _dismiss(idle, [worker for worker, _ in busy.values()])


@dataclass(frozen=True)
class Here(Engine):
    """This process: nothing needs to be picklable, and a notebook's own classes will do."""

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Generator[tuple[int, R], None, None]:
        for number, task in enumerate(tasks):
            yield number, function(task)


@dataclass(frozen=True)
class Lost:
    """What comes of a task whose worker ended without a result: how it ended."""

    how: str


def work_off(
    begin: Callable[[int], None], finished: Callable[[], Iterable[tuple[int, Any]]], count: int, workers: int
) -> Generator[tuple[int, Any], None, None]:
    """Begin so many tasks as workers are free, and give the results; one whose worker was lost is begun again.

    ``finished`` waits for the next tasks to end, and raises what a task raised.
    """
    waiting, tries, busy = deque(range(count)), [0] * count, 0
    while waiting or busy:
        while waiting and busy < workers:
            number = waiting.popleft()
            tries[number] += 1
            busy += 1
            begin(number)
            _log.info("task %d of %d begins, try %d", number + 1, count, tries[number])
        for number, result in finished():
            busy -= 1
            if not isinstance(result, Lost):
                yield number, result
                continue
            _log.info("the worker of task %d is lost: %s", number + 1, result.how)
            if tries[number] == TRIES:
                raise WorkerLost(
                    f"task {number + 1} was begun {TRIES} times, and each time its worker died, the last with "
                    f"{result.how}; if that is for want of memory, fewer --workers may help"
                )
            waiting.appendleft(number)


class _Worker:
    """A process that works off one task at a time, with a GPU if there are any."""

    def __init__(self, function: Callable[[Any], Any], slot: int, threads: int) -> None:
        context, devices = multiprocessing.get_context("spawn"), _gpus() or [""]
        self.slot = slot
        self.pipe, theirs = context.Pipe()
        # Not a daemon: those may not have children, which loaders of data are.
        arguments = (function, theirs, threads, devices[slot % len(devices)])
        self.process = context.Process(target=_work, args=arguments, daemon=False)
        self.process.start()
        theirs.close()

    def stop(self, grace: float) -> int | None:
        """Let the worker end, at last by force; returns how it ended."""
        self.pipe.close()
        self.process.join(grace)
        self.process.kill()  # does nothing to one that has ended
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        return code


def _dismiss(idle: Sequence[_Worker], busy: Sequence[_Worker]) -> None:
    """End all workers; those under way are asked to stop, which training takes as a call to save its state."""
    try:
        for worker in busy:
            worker.process.terminate()
        for worker in (*busy, *idle):
            worker.stop(GRACE if worker in busy else 1.0)
    except KeyboardInterrupt:
        for worker in (*busy, *idle):
            with contextlib.suppress(ValueError):  # closed: ended before
                worker.process.kill()
        raise


def _work(function: Callable[[Any], Any], pipe: connection.Connection, threads: int, device: str) -> None:
    """Work off tasks until the pipe closes."""
    # Ctrl-C is for the parent, which then asks for a stop once; it would reach this process too, in the same group.
    with contextlib.suppress(PermissionError):
        os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if device:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError, KeyboardInterrupt):
        while True:
            task = pipe.recv()
            try:
                # Plain bytes: the pipe's own pickling would leave tensors in shared memory that ends with this process.
                answer = pickle.dumps((True, function(task), ""))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                answer = pickle.dumps((False, _sendable(error), traceback.format_exc()))
            pipe.send_bytes(answer)


def threads_each(workers: int, available: int | None = None) -> int:
    """Threads of each worker: what OMP_NUM_THREADS says, or else its share of the available cores."""
    said = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(said) if said.isdecimal() and int(said) else max(1, (available or cores()) // workers)


def _end_with_parent() -> None:
    """End this process when its parent is gone, also by SIGKILL: nobody would take its result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)


def _sendable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA knows them by."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
