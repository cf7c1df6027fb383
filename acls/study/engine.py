"""Run the tasks of a study in processes of this machine or on a Ray cluster: ``engine.map(function, tasks)``.

Both engines give the same results, because a task uses the same number of threads on each. If a worker process dies
during a task, by a signal or because of missing memory, it is replaced and the task is tried again. Tasks should
therefore continue from their last state. An error that a task raises is raised here, and the other tasks are stopped.
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
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any, TypeVar

import torch

from acls.errors import InputError, WorkerLost, suggest

T = TypeVar("T")
R = TypeVar("R")
_log = logging.getLogger(__name__)

ENGINES = ("local", "ray")
TRIES = 3
GRACE = 30.0
"""Seconds that interrupted tasks get to save their state."""


class TaskFailed(RuntimeError):
    """The traceback in the worker, set as the cause of the error that a task raised."""


@dataclass(frozen=True)
class Engine(ABC):
    """Maps a function over tasks; both must be picklable, and the function must be importable from a module."""

    workers: int
    threads: int
    """Number of threads per device of a worker."""
    devices: int = field(default=1, kw_only=True)
    """Number of GPUs, or of processes on a CPU, that each task uses; 0 for all GPUs that this process may use."""
    tries: int = field(default=TRIES, kw_only=True)
    """Largest number of attempts per task."""

    @property
    def at_once(self) -> int:
        """The number of tasks that run at the same time."""
        return max(1, self.workers // max(1, self.devices))

    @abstractmethod
    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Generator[tuple[int, R], None, None]:
        """Yield the number and the result of each task, in the order in which they finish.

        If the iteration stops, by Ctrl-C or an error, the running tasks are interrupted and can save their state.
        """


def make_engine(name: str = "local", *, workers: int | None = None, address: str | None = None) -> Engine:
    """Return the engine with that name, by default with one worker per core and one thread per worker.

    With fewer workers, each has more threads, unless OMP_NUM_THREADS sets the number. The number of threads does not
    depend on the number of tasks, so a study that was interrupted and continued gives the same bits.
    """
    if name not in ENGINES:
        raise InputError(f"there is no engine {name!r}{suggest(name, ENGINES)}")
    if workers is not None and workers < 1:
        raise InputError(f"--workers: expected 1 or more, got {workers}")
    if address is not None and name != "ray":
        raise InputError("--address is the address of a Ray cluster: pass --engine ray too")
    if name == "ray":
        from acls.study.cluster import Ray

        return Ray.make(workers, address)
    workers = workers or len(_gpus()) or cores()
    return Local(workers, threads_each(workers))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Local(Engine):
    """Processes on this machine, each with a pipe to this process; on a machine with GPUs, each has its own GPUs."""

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Generator[tuple[int, R], None, None]:
        idle: list[_Worker] = []
        busy: dict[Any, tuple[_Worker, int]] = {}

        def begin(number: int) -> None:
            taken = {worker.slot for worker in (*idle, *(worker for worker, _ in busy.values()))}
            worker = idle.pop() if idle else _Worker(function, min({*range(self.at_once)} - taken), self)
            busy[worker.pipe] = worker, number
            with contextlib.suppress(BrokenPipeError):  # a dead worker is detected when its result is read
                worker.pipe.send(tasks[number])

        def finished() -> Iterator[tuple[int, Any]]:
            # A pipe is ready if its worker has a result or is dead; the pipe of a dead worker is at its end.
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
            yield from work_off(begin, finished, len(tasks), self)
        finally:
            _dismiss(idle, [worker for worker, _ in busy.values()])


@dataclass(frozen=True)
class Here(Engine):
    """Runs tasks in this process: nothing needs to be picklable, so classes defined in a notebook work."""

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Generator[tuple[int, R], None, None]:
        for number, task in enumerate(tasks):
            yield number, function(task)


@dataclass(frozen=True)
class Lost:
    """The result of a task whose worker ended without a result: the way in which it ended."""

    how: str


def work_off(
    begin: Callable[[int], None], finished: Callable[[], Iterable[tuple[int, Any]]], count: int, engine: Engine
) -> Generator[tuple[int, Any], None, None]:
    """Run tasks, as many at once as the engine says, and yield their results; a task of a lost worker is started again.

    ``finished`` waits until more tasks end, and raises the error that a task raised.
    """
    waiting, tries, busy = deque(range(count)), [0] * count, 0
    while waiting or busy:
        while waiting and busy < engine.at_once:
            number = waiting.popleft()
            tries[number] += 1
            busy += 1
            begin(number)
            _log.info("task %d of %d starts, attempt %d", number + 1, count, tries[number])
        for number, result in finished():
            busy -= 1
            if not isinstance(result, Lost):
                yield number, result
                continue
            _log.info("the worker of task %d was lost: %s", number + 1, result.how)
            if tries[number] == engine.tries:
                raise WorkerLost(
                    f"task {number + 1} was started {engine.tries} times, and its worker died each time, the last "
                    f"time with {result.how}; if memory ran out, fewer --workers may help"
                )
            waiting.appendleft(number)


class _Worker:
    """A process that runs one task at a time, with its own GPUs if there are any."""

    def __init__(self, function: Callable[[Any], Any], slot: int, engine: Local) -> None:
        context, gpus, share = multiprocessing.get_context("spawn"), _gpus(), engine.devices
        own = dict.fromkeys(gpus[number % len(gpus)] for number in range(slot * share, (slot + 1) * share) if gpus)
        self.slot = slot
        self.pipe, theirs = context.Pipe()
        # Not a daemon: a daemon may not have child processes, and data loaders use them.
        arguments = (function, theirs, engine.threads * max(1, share), ",".join(own))
        self.process = context.Process(target=_work, args=arguments, daemon=False)
        self.process.start()
        theirs.close()

    def stop(self, grace: float) -> int | None:
        """Wait until the worker ends, kill it after ``grace`` seconds, and return its exit code."""
        self.pipe.close()
        self.process.join(grace)
        self.process.kill()  # has no effect on a process that has ended
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        return code


def _dismiss(idle: Sequence[_Worker], busy: Sequence[_Worker]) -> None:
    """End all workers; busy workers are asked to stop, so that training can save its state."""
    try:
        for worker in busy:
            worker.process.terminate()
        for worker in (*busy, *idle):
            worker.stop(GRACE if worker in busy else 1.0)
    except KeyboardInterrupt:
        for worker in (*busy, *idle):
            with contextlib.suppress(ValueError):  # closed: it has ended already
                worker.process.kill()
        raise


def _work(function: Callable[[Any], Any], pipe: connection.Connection, threads: int, devices: str) -> None:
    """Run tasks until the pipe closes."""
    # Ignore Ctrl-C: this process is in the same group, but the parent handles it and asks for one stop.
    with contextlib.suppress(PermissionError):
        os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError, KeyboardInterrupt):
        while True:
            task = pipe.recv()
            try:
                # Send bytes: the pipe's own pickling would put tensors in shared memory, which ends with this process.
                answer = pickle.dumps((True, function(task), ""))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                answer = pickle.dumps((False, _sendable(error), traceback.format_exc()))
            pipe.send_bytes(answer)


@contextlib.contextmanager
def repeated(function: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call a function every few seconds, in another thread, during the block."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            function()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def threads_each(workers: int, available: int | None = None) -> int:
    """Return the number of threads per worker: OMP_NUM_THREADS, or else its share of the available cores."""
    said = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(said) if said.isdecimal() and int(said) else max(1, (available or cores()) // workers)


def _end_with_parent() -> None:
    """End this process when its parent ends, even by SIGKILL: nobody would read its result."""
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
    """Return the CUDA names of the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
