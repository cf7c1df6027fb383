"""Options that say where the work is done."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from acls.options import number

if TYPE_CHECKING:
    from acls.study.engine import Engine


def add_engine(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options; ``what`` is done so many at a time."""
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="processes here, or a Ray cluster")
    parser.add_argument("--address", metavar="ADDRESS", help="of the Ray cluster; auto for the one of the environment")
    parser.add_argument("--workers", type=number(int, "[1, 100000]"), metavar="N", help=what)


def engine_of(args: argparse.Namespace) -> Engine:
    """The engine that the options say."""
    from acls.study.engine import make_engine

    return make_engine(args.engine, workers=args.workers, address=args.address)
