"""Corrupt the test images on the fly and report accuracy, ECE with its noise floor, and whether the temperature holds.

The temperature is fitted on the clean validation part. Under each corruption it "holds" where the ECE after it is
within noise, else it "helps" or "hurts". Works for classification and segmentation.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from acls.cli.output import add_force, check_out
from acls.cli.settings import add_settings, settings_of
from acls.data import DataOptions
from acls.errors import InputError
from acls.models import ModelOptions
from acls.options import leaves, number, override

if TYPE_CHECKING:
    from acls.report.tables import Table
    from acls.watch.shift import Condition, Shift

EXAMPLE = """\
examples:
  acls shift runs/digits_cnn-ACLS-1
  acls shift runs/mine --corruptions noise,blur,contrast,jpeg --severity 1-5 --figure shift.png
  acls shift runs/mine --data folder --root OTHER_IMAGES --limit 1000 --json
  acls shift timm/resnet18 --model.weights resnet18.safetensors --data folder --root IMAGES --data.normalise imagenet
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls shift``."""
    parser.add_argument(
        "source", metavar="RUN|MODEL", help="folder of a run, a weights file in it, or a network's name"
    )
    parser.add_argument("--corruptions", default="all", metavar="NAMES", help="comma-separated, or all")
    parser.add_argument("--severity", default="1-5", metavar="RANGE", help="such as 3, 1-5 or 1,3,5")
    parser.add_argument(
        "--limit", type=number(int, "[1, inf)"), metavar="N", help="only so many test images, drawn at random"
    )
    parser.add_argument("--seed", type=number(int, "[0, 9e18]"), default=0, help="of the corruptions and the draw")
    parser.add_argument("--figure", metavar="FILE", help="draw ECE over severity: .png, .svg or .pdf")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object, with fractions, not percent")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    known = {**leaves(DataOptions, "data."), **leaves(ModelOptions, "model.")}
    known.pop("model.name")
    add_settings(parser, known, {"data": "data.name", "root": "data.root", "download": "data.download"})


def run(args: argparse.Namespace) -> int:
    """Measure, and print the table."""
    severities = _severities(args.severity)
    from acls.data.corruptions import CORRUPTIONS
    from acls.train import open_run
    from acls.watch.shift import is_network, of_model

    given = settings_of(args)
    of_data = {name.removeprefix("data."): value for name, value in given.items() if name.startswith("data.")}
    of_net = {name.removeprefix("model."): value for name, value in given.items() if name.startswith("model.")}
    data, model = None, None
    if is_network(args.source):
        if "name" not in of_data:
            raise InputError(f"{args.source} is a network: say on which data, as in --data folder --root IMAGES")
        data, model = override(DataOptions(), of_data), override(ModelOptions(), of_net)
    elif of_net:
        raise InputError("a run has its own network: pass --model settings with a network's name instead of a run")
    elif of_data and Path(args.source).exists():
        place = Path(args.source)
        data = override(open_run(place if place.is_dir() else place.parent)[1].data, of_data)
    if args.figure is not None:
        from acls.report.figures.style import form_of

        form_of(args.figure)  # before the work, which takes long
        check_out(args, args.figure, "figure", args.source)
    names = list(CORRUPTIONS) if args.corruptions == "all" else [name.strip() for name in args.corruptions.split(",")]
    found = of_model(
        args.source,
        data=data,
        model=model,
        corruptions=names,
        severities=severities,
        limit=args.limit,
        seed=args.seed,
        note=None if args.quiet else _progress,
    )
    print(json.dumps(found.as_json(), indent=2) if args.json else _told(found, markdown=args.markdown))
    if args.figure is not None:
        from acls.report.figures.shift import plot
        from acls.report.figures.style import save

        save(plot(found), args.figure)
    return 0


def _severities(text: str) -> list[int]:
    """Read ``3``, ``1-5`` or ``1,3,5``."""
    try:
        parts = [part.split("-") for part in text.split(",")]
        found = [level for part in parts for level in range(int(part[0]), int(part[-1]) + 1)]
    except ValueError:
        found = []
    if not found or not set(found) <= set(range(1, 6)):
        raise InputError(f"--severity: expected levels from 1 to 5, as in 3, 1-5 or 1,3,5, got {text!r}")
    return sorted(set(found))


def _progress(one: Condition) -> None:
    if sys.stderr.isatty():
        print(f"{one.corruption} {one.severity}: ECE {one.ece:.2%}", file=sys.stderr)


def _told(found: Shift, *, markdown: bool) -> str:
    from acls.report.tables import Table, paragraph, percent

    table: Table = Table(
        ["corruption", "severity", "accuracy %", "ECE %", "floor", "ECE after T %", "floor", "T that fits", "clean T"]
    )
    for one in found.conditions:
        table.add(
            one.corruption,
            str(one.severity),
            percent(one.accuracy),
            percent(one.ece),
            percent(one.ece_floor),
            percent(one.scaled_ece),
            percent(one.scaled_floor),
            f"{one.fitting_temperature:.3f}",
            one.verdict,
        )
    lines = [paragraph(found.verdict()), "", table.markdown() if markdown else table.text()]
    if found.dense:
        lines.append(paragraph("Pixels of one image are not independent: the noise floors are too low."))
    return "\n".join(lines)
