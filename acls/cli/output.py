"""What a command says when it is done: lines to read, or one JSON object with --json."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from acls.storage import check_output, finite

if TYPE_CHECKING:
    from acls.report.tables import Table


def add_output(parser: argparse.ArgumentParser, *, quiet: str = "no progress bar") -> None:
    """Add --json and --quiet."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--quiet", action="store_true", help=quiet)


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add --force, for commands that write a file where they are asked to."""
    parser.add_argument("--force", action="store_true", help="write over what acls did not write")


def check_out(args: argparse.Namespace, path: str | os.PathLike[str], kind: str, *inputs: Any) -> None:
    """Raise, before any work, where the command must not write a file: see `acls.storage.check_output`."""
    check_output(path, kind, inputs=[one for one in inputs if one is not None], force=args.force)


def say(args: argparse.Namespace, told: Any, *lines: str) -> None:
    """Print ``told`` as JSON if that is wanted, else the lines."""
    if args.json:
        print(json.dumps(finite(told), indent=2, allow_nan=False, ensure_ascii=False))
    elif lines:
        print("\n".join(lines))


def show_table(args: argparse.Namespace, table: Table) -> None:
    """Print a table as wide as the terminal, or as Markdown where that is wanted."""
    from acls.report.tables import width

    print(table.markdown() if getattr(args, "markdown", False) else table.text(width()))
