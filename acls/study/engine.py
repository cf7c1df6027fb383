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
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, TypeVar

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
    return Local.make(workers)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Local(Engine):
    """Processes of this machine, each with a pipe to this one; on a machine with GPUs each has one to itself."""

    @classmethod
    def make(cls, workers: int | None) -> Local:
        workers = workers or len(_gpus()) or cores()
        return cls(workers, threads_each(workers))

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Generator[tuple[int, R], None, None]:
        waiting, devices = deque(enumerate(tasks)), _gpus()
        tries = [0] * len(tasks)
        crew: list[_Worker] = []
        finished = False
        try:
            while waiting or any(worker.task is not None for worker in crew):
                busy = {worker.slot for worker in crew}
                free = (slot for slot in range(self.workers) if slot not in busy)
                idle = [worker for worker in crew if worker.task is None]
                while waiting and (idle or len(crew) < self.workers):
                    if not idle:
                        slot = next(free)
                        idle.append(
                            _Worker(function, slot, self.threads, devices[slot % len(devices)] if devices else "")
                        )
                        crew.append(idle[-1])
                    number, task = waiting.popleft()
                    tries[number] += 1
                    idle.pop().begin(number, task)
                    _log.info("task %d of %d begins, try %d", number + 1, len(tasks), tries[number])
                for worker in _ready(crew):
                    number = worker.number
                    try:
                        result = worker.result()
                    except _Dead:
                        crew.remove(worker)
                        code = worker.stop(0)
                        _log.info("the worker of task %d ended with %s", number + 1, code)
                        if tries[number] == TRIES:
                            raise WorkerLost(epitaph(number, code)) from None
                        waiting.appendleft((number, tasks[number]))
                    else:
                        yield number, result
            finished = True
        finally:
            _dismiss(crew, 0 if finished else GRACE)


@dataclass(frozen=True)
class Here(Engine):
    """This process: nothing needs to be picklable, and a notebook's own classes will do."""

    @classmethod
    def make(cls) -> Here:
        import torch

        return cls(1, torch.get_num_threads())

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Generator[tuple[int, R], None, None]:
        for number, task in enumerate(tasks):
            yield number, function(task)


class _Dead(Exception):
    """A worker ended without a result."""


class _Worker:
    """A process that works off one task at a time."""

    def __init__(self, function: Callable[[Any], Any], slot: int, threads: int, device: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.slot = slot
        self.task: Any = None
        self.number = -1
        self.pipe, theirs = context.Pipe()
        # Not a daemon: those may not have children, which loaders of data are.
        self.process = context.Process(target=_work, args=(function, theirs, threads, device), daemon=False)
        self.process.start()
        theirs.close()

    def begin(self, number: int, task: Any) -> None:
        self.number, self.task = number, (task,)
        with contextlib.suppress(BrokenPipeError):  # a worker that is dead already is found so when asked for a result
            self.pipe.send(task)

    def result(self) -> Any:
        """What the task gave or raised."""
        try:
            well, value, trace = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise _Dead from error
        self.task = None
        if well:
            return value
        raise value from TaskFailed(f"\n{trace}")

    def stop(self, grace: float) -> int | None:
        """Let the worker end, at last by force; returns how it ended."""
        self.pipe.close()
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        return code


def _ready(crew: Sequence[_Worker]) -> list[_Worker]:
    """Wait for busy workers that are done or dead. A pipe shows both: that of a dead worker is at its end."""
    by_pipe = {worker.pipe: worker for worker in crew if worker.task is not None}
    return [by_pipe[pipe] for pipe in connection.wait(list(by_pipe)) if isinstance(pipe, connection.Connection)]


def _dismiss(crew: Sequence[_Worker], grace: float) -> None:
    """End all workers; those under way are asked to stop, which training takes as a call to save its state."""
    try:
        for worker in crew:
            if worker.task is not None:
                worker.process.terminate()
        for worker in crew:
            worker.stop(grace if worker.task is not None else 1.0)
    except KeyboardInterrupt:
        for worker in crew:
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
    set_threads(threads)
    while True:
        try:
            task = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            # Plain bytes: the pipe's own pickling would leave tensors in shared memory that ends with this process.
            answer = pickle.dumps((True, function(task), ""))
        except KeyboardInterrupt:
            return
        except BaseException as error:
            answer = pickle.dumps((False, _sendable(error), traceback.format_exc()))
        try:
            pipe.send_bytes(answer)
        except BrokenPipeError:
            return


def threads_each(workers: int, available: int | None = None) -> int:
    """Threads of each worker: what OMP_NUM_THREADS says, or else its share of the available cores."""
    said = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(said) if said.isdecimal() and int(said) else max(1, (available or cores()) // workers)


def set_threads(threads: int) -> None:
    """Compute with this many threads."""
    import torch

    torch.set_num_threads(threads)


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


def epitaph(number: int, code: int | None = None) -> str:
    """Why a task was given up: its workers died, the last with this exit code."""
    how = "" if code is None else f", at last by signal {-code}" if code < 0 else f", at last with exit code {code}"
    return (
        f"task {number + 1} was begun {TRIES} times, and each time its worker died{how}; "
        "if that is for want of memory, fewer --workers may help"
    )


def _gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA knows them by."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
