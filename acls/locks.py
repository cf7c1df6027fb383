"""A lock on a folder, for runs, studies and searches: it ends with its process, however that ends."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from acls.errors import InputError

_held: dict[str, io.FileIO] = {}
"""The locks of this process."""


def _drop() -> None:
    """Give the locks up in a forked process, as a reader of data: it would keep them when its parent is killed."""
    for file in _held.values():
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop)


class Held(InputError):
    """Another process holds the lock; the message says which, and the way out."""


@contextmanager
def hold(path: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``, whose folder is made; where another process holds it, wait for it or raise `Held`.

    The lock is the operating system's, on the open file, so that of a process that was killed is free. The file stays:
    its text only says who holds the lock. A process may hold one lock several times, so that code that locks a
    run's folder can call code that locks it, too.
    """
    import fcntl

    path = Path(os.path.realpath(path))
    if str(path) in _held:
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {path.parent}: {error.strerror}; pass another --out") from error
    with open(path, "a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                file.seek(0)
                holder = file.read().decode(errors="replace").strip() or "another process"
                used = f"{path.parent} is in use by {holder}"
                raise Held(f"{used}: wait for it with --wait, or pass another --out") from None
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        holder = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}\n"
        try:
            file.write(holder.encode())
        except OSError as error:
            error.filename = str(path)
            raise
        _held[str(path)] = file
        try:
            yield
        finally:
            _held.pop(str(path), None)
