"""What a command says when it is done: lines to read, or one JSON object with --json."""

from __future__ import annotations

import argparse
import json
from typing import Any

from acls.storage import finite


def add_output(parser: argparse.ArgumentParser, *, quiet: str = "no progress bar") -> None:
    """Add --json and --quiet."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--quiet", action="store_true", help=quiet)


def say(args: argparse.Namespace, told: Any, *lines: str) -> None:
    """Print ``told`` as JSON if that is wanted, else the lines."""
    if args.json:
        print(json.dumps(finite(told), indent=2, allow_nan=False, ensure_ascii=False))
    elif lines:
        print("\n".join(lines))
