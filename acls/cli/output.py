"""What a command says when it is done: lines to read, or one JSON object with --json."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any


def add_output(parser: argparse.ArgumentParser, *, quiet: str = "no progress bar") -> None:
    """Add --json and --quiet."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--quiet", action="store_true", help=quiet)


def say(args: argparse.Namespace, told: Any, *lines: str) -> None:
    """Print ``told`` as JSON if that is wanted, else the lines."""
    if args.json:
        print(json.dumps(_finite(told), indent=2, allow_nan=False, ensure_ascii=False))
    elif lines:
        print("\n".join(lines))


def _finite(value: Any) -> Any:
    """The same with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
