"""The engine for a Ray cluster, whose machines do not need a shared disk.

A task with its own folder (`Placed`) works directly in this folder if its machine can access it. Otherwise the files of
the folder are sent with the task, and the files that the task writes are sent back while it runs. If a machine is lost,
only the work since the last transfer is lost. The machine that started the study has all its files.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import torch

from acls.errors import InputError, require
from acls.storage import atomic_write
from acls.study.engine import GRACE, Engine, Lost, cores, repeated, threads_each, work_off

T = TypeVar("T")
R = TypeVar("R")
EVERY = 10.0
"""Seconds between two checks for files that a task has written."""


@runtime_checkable
class Placed(Protocol):
    """A task that reads or writes one folder, or reads one file."""

    @property
    def place(self) -> Path:
        """Return the absolute path of the folder or file."""

    def below(self, root: Path) -> Self:
        """Return the same task with its path under another root."""


@dataclass(frozen=True)
class Home:
    """The location of the files of a task on the machine that submits it."""

    proof: Path
    stamp: tuple[int, int]
    """Size and time of the proof file: a machine that reads the same values can access the same folder."""
    files: Any
    """A list with a reference to the contents by name ("" for a file); empty if the task may work in place."""
    number: int
    """The number of the task."""
    queue: Any
    """Returns the files that the task writes on another machine."""


class _Elsewhere:
    """The answer of a machine that cannot access the files of a task and did not receive them."""


@dataclass(frozen=True)
class Ray(Engine):
    """A Ray cluster, or a temporary one on this machine; ``auto`` is the cluster that the environment names."""

    address: str | None

    @classmethod
    def make(cls, workers: int | None, address: str | None) -> Ray:
        if address is None:
            require("ray", extra="cluster")
            count = workers or cores()
            return cls(count, threads_each(count), None)
        ray = _connected(address)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        sizes = [int(node["CPU"]) for node in nodes if node.get("CPU")]
        count = workers or int(sum(node.get("GPU", 0) for node in nodes)) or sum(sizes)
        return cls(count, min(min(sizes), threads_each(count, sum(sizes))), address)

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Generator[tuple[int, R], None, None]:
        ray: Any = require("ray", extra="cluster")
        started = not ray.is_initialized()
        processes = max(self.workers, self.devices)
        _connected(self.address, **({} if self.address else {"num_cpus": processes * self.threads}))
        gpus = self.devices if ray.cluster_resources().get("GPU") else 0
        remote = ray.remote(num_cpus=self.threads * self.devices, num_gpus=gpus, max_retries=0)(_on_ray)
        lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError)
        running: dict[Any, int] = {}
        with contextlib.ExitStack() as stack:
            if started:
                stack.callback(ray.shutdown)
            post = _Post(stack, ray.put)

            def begin(number: int) -> None:
                home = post.of(number, tasks[number])
                running[remote.remote(function, tasks[number], self.threads * self.devices, home)] = number

            def finished() -> Iterator[tuple[int, Any]]:
                done, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
                post.receive()
                for reference in done:
                    number = running.pop(reference)
                    try:
                        result = ray.get(reference)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from error
                    except lost as error:
                        result = Lost(type(error).__name__)
                    if isinstance(result, _Elsewhere):
                        post.apart.add(number)
                        begin(number)
                    else:
                        yield number, result

            try:
                yield from work_off(begin, finished, len(tasks), self)
            finally:
                for reference in running:
                    ray.cancel(reference)  # like Ctrl-C: training saves its state
                if running:
                    ray.wait(list(running), num_returns=len(running), timeout=GRACE)
                    post.receive()


def _connected(address: str | None, **settings: Any) -> Any:
    ray: Any = require("ray", extra="cluster")
    if not ray.is_initialized():
        quiet = {"include_dashboard": False} if address is None else {}
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error", **quiet, **settings)
        except ConnectionError as error:
            why = str(error).splitlines()[0]
            raise InputError(f"there is no Ray cluster at --address {address}: {why}") from error
    return ray


class _Post:
    """The files of tasks, on the machine that submits them."""

    def __init__(self, stack: contextlib.ExitStack, put: Callable[[Any], Any]) -> None:
        self.put, self.stack = put, stack
        self.queue: Any = None
        """Created for the first task that has files."""
        self.places: dict[int, Path] = {}
        self.apart: set[int] = set()
        """Tasks that were sent to a machine that cannot access their files."""

    def of(self, number: int, task: Any) -> Home | None:
        """Return the location of the files of a task and how to send files back; None if the task has no files."""
        if not isinstance(task, Placed):
            return None
        if self.queue is None:
            self.queue = require("ray.util.queue", extra="cluster").Queue(actor_options={"num_cpus": 0})
            self.stack.callback(self.queue.shutdown, force=True)
        place = proof = self.places[number] = task.place
        if not place.is_file():
            place.mkdir(parents=True, exist_ok=True)
            proof = place / f".{uuid.uuid4().hex}"
            proof.touch()
            self.stack.callback(proof.unlink, missing_ok=True)
        files = []
        if number in self.apart:
            found = [("", place)] if place.is_file() else _files(place)
            files = [self.put({name: file.read_bytes() for name, file in found})]
        return Home(proof, _stamp(proof), files, number, self.queue)

    def receive(self) -> None:
        """Write the files that were received; with a list of names instead of contents, delete all other files."""
        for number, name, content in self.queue.get_nowait_batch(self.queue.qsize()) if self.queue else ():
            if isinstance(content, bytes):
                with atomic_write(self.places[number] / name) as temporary:
                    temporary.write_bytes(content)
            else:
                for there, file in _files(self.places[number]):
                    if there not in content:
                        file.unlink()


@contextlib.contextmanager
def _sending(home: Home, place: Path) -> Iterator[None]:
    """Send files back as they change, and at the end all remaining changes."""
    known = {name: _stamp(file) for name, file in _files(place)}

    def send() -> None:
        for name, file in _files(place):
            with contextlib.suppress(FileNotFoundError):  # replaced or removed meanwhile: check again next time
                stamp, content = _stamp(file), file.read_bytes()
                if known.get(name) != stamp:
                    home.queue.put((home.number, name, content))
                    known[name] = stamp

    try:
        with repeated(send, EVERY):
            yield
    finally:
        send()
        if place.is_dir():
            home.queue.put((home.number, "", [name for name, _ in _files(place)]))


def _on_ray(function: Callable[[Any], Any], task: Any, threads: int, home: Home | None) -> Any:
    torch.set_num_threads(threads)
    if home is None or (home.proof.exists() and _stamp(home.proof) == home.stamp):
        return function(task)
    if not home.files:
        return _Elsewhere()
    with tempfile.TemporaryDirectory() as root:
        moved = task.below(Path(root))
        place: Path = moved.place
        for name, content in require("ray", extra="cluster").get(home.files[0]).items():
            file = place / name if name else place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        with _sending(home, place):
            return function(moved)


def _files(place: Path) -> list[tuple[str, Path]]:
    """Return the files under a folder by relative name, without hidden files, such as locks and temporary files."""
    found = sorted(file for file in place.rglob("*") if file.is_file() and not file.name.startswith("."))
    return [(file.relative_to(place).as_posix(), file) for file in found]


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns
