"""Tasks for the engines, which import them by name."""

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from acls.errors import InputError


def square(task):
    return task, task * task, torch.get_num_threads()


def random_walk(seed):
    """Numbers whose last bits depend on the order of sums, hence on the threads."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(400, 400, generator=generator) @ torch.randn(400, 400, generator=generator)).sum().item()


def die_once(task):
    """The first time, go as the out-of-memory killer makes one go."""
    mark, value = task
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(task):
    raise InputError(f"{task} will not do")


def end_of_file(_):
    raise EOFError("of the task's own")


def sleep(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)


def save_when_stopped(folder):
    """As training does: a call to stop is answered by saving."""
    here = Path(folder)

    def stop(*_):
        (here / "saved").touch()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    (here / "begun").touch()
    time.sleep(600)


def threads(_task):
    """The threads that torch computes with, and what the environment says."""
    return torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")


def span(seconds):
    begun = time.time()
    time.sleep(seconds)
    return begun, time.time()


@dataclass(frozen=True)
class Counting:
    """A task with a folder, which holds how far it has come."""

    place: Path
    more: int

    def below(self, root):
        return replace(self, place=root / self.place.relative_to("/"))


def count_on(task):
    """Count on, and say where that was."""
    time.sleep(2)
    (task.place / "stale").unlink()
    count = int((task.place / "count").read_text()) + task.more
    (task.place / "count").write_text(str(count))
    return count, task.place


def visible(_):
    time.sleep(0.5)  # so that the other worker takes a task, too
    return os.environ.get("CUDA_VISIBLE_DEVICES"), torch.get_num_threads()
