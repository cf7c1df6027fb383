"""Errors that say what was expected, what was given, and how to fix it."""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class InputError(ValueError):
    """An input of the user is invalid; the message says why and what to pass instead.

    The command line prints the message on one line, without a traceback, and exits with status 2.
    """


class MissingExtra(ImportError):
    """An optional dependency is not installed; the message contains the command that installs it."""


class WorkerLost(RuntimeError):
    """Worker processes died in every attempt to run a task of a study; the command line exits with status 1."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``": did you mean 'x'?"`` for the closest known name, or all known names if none is close.

    >>> suggest("margn", ["margin", "lambda1"])
    ": did you mean 'margin'?"
    """
    known = sorted(known)
    folded = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1)
    if close:
        return f": did you mean {folded[close[0]]!r}?"
    return f": choose from {', '.join(known)}" if known else ""


def check_names(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise an error for the first keyword argument that a call does not know."""
    for name in given:
        if name not in known:
            raise InputError(f"{call} takes no {name}={suggest(name, known)}")


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or raise an error that names the extra of acls that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise missing(error.name, extra) from error


def missing(library: str, extra: str) -> MissingExtra:
    """Return the error for a library that is not installed, with the command that installs it."""
    # torch-acls is the name of the distribution that pip installs; the package to import is acls.
    return MissingExtra(f"this needs {library}, which is not installed: pip install 'torch-acls[{extra}]'")
