"""Errors that say what was expected, what was given, and the way out."""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType

DISTRIBUTION = "torch-acls"
"""What pip installs; `acls` is the name to import."""


class InputError(ValueError):
    """What the user passed cannot be used; the message says why and what to pass instead.

    The command line prints it as one line and exits with 2, without a traceback.
    """


class MissingExtra(ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""


class WorkerLost(RuntimeError):
    """Workers died in a task of a study as often as it is tried; the command line exits with 1."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``": did you mean 'x'?"`` for the closest known name, else the list of all of them.

    >>> suggest("margn", ["margin", "lambda1"])
    ": did you mean 'margin'?"
    """
    known = sorted(known)
    folded = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1)
    if close:
        return f": did you mean {folded[close[0]]!r}?"
    return f": there are {', '.join(known)}" if known else ""


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra of acls brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise missing(error.name, extra) from error


def missing(library: str, extra: str) -> MissingExtra:
    """The error for a library that is not installed, with the command that installs it."""
    return MissingExtra(f"this needs {library}, which is not installed: pip install '{DISTRIBUTION}[{extra}]'")
