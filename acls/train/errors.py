"""Why training stopped, in a sentence for the user."""

from __future__ import annotations


class TrainingStopped(RuntimeError):
    """Training cannot go on; the message says why, what is kept, and what to try. The command line exits with 1."""
