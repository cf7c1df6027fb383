"""The versions that the pages name, which are those of constraints.txt."""

import importlib.metadata
import re
from pathlib import Path

import pytest

CONSTRAINTS = (Path(__file__).parents[1] / "constraints.txt").read_text(encoding="utf-8")


def pinned(distribution):
    """The pinned version; skips the test where another version is installed, or none, as by ``make matrix``."""
    (pin,) = re.findall(rf"^{distribution}==(.*)$", CONSTRAINTS, re.M)
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")
    if installed != pin:
        pytest.skip(f"what is said of {distribution} was checked with {pin}, and {installed} is installed")
    return pin
