"""A lock on a folder that ends with its process, however that ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Held(Exception):
    """Another process has the lock; the message says which."""


@contextmanager
def hold(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock that a file stands for; where another process does, wait for it or raise `Held`.

    The lock is the operating system's, on the open file, which stays: what is written in it only tells who to ask.
    """
    import fcntl

    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                file.seek(0)
                raise Held(file.read().strip() or "another process") from None
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
