"""Corrupt the test images on the fly and report accuracy, ECE with its noise floor, and whether the temperature holds.

The temperature is fitted on the clean validation part. For each corruption, it "holds" if the ECE after scaling is
within noise; otherwise it "helps" or "hurts", or "maybe" if the change may be chance. Works for classification and
segmentation.

Examples:
  acls shift runs/digits_cnn-ACLS-1
  acls shift runs/mine --corruptions noise,blur --severity 1-5 --figure a.png
  acls shift runs/mine --data folder --root OTHER_IMAGES --limit 1000 --json
  acls shift timm/resnet18 --model.weights FILE --data folder --root IMAGES

"""

import argparse
import sys

from acls.cli.common import add_shared, check_out, numbers, say
from acls.cli.settings import add_settings, data_of, settings_of
from acls.data import DataOptions
from acls.errors import InputError
from acls.models import ModelOptions
from acls.options import leaves, number, override


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls shift``."""
    source = "folder of a run, a weights file in it, or a network's name"
    parser.add_argument("source", metavar="RUN|MODEL", help=source)
    parser.add_argument("--corruptions", default="all", metavar="NAMES", help="comma-separated, or all")
    parser.add_argument("--severity", default="1-5", metavar="RANGE", help="such as 3, 1-5 or 1,3,5")
    parser.add_argument(
        "--limit", type=number(int, "[1, inf)"), metavar="N", help="number of test images, drawn at random"
    )
    parser.add_argument("--seed", type=number(int, "[0, 9e18]"), default=0, help="seed of corruptions and --limit")
    add_shared(parser, "force", "json", "markdown", "quiet", figure="draw ECE over severity: .png, .svg or .pdf")
    known = leaves(ModelOptions, "model.")
    known.pop("model.name")
    add_settings(parser, leaves(DataOptions, "data.") | known)


def run(args: argparse.Namespace) -> None:
    """Measure, and print the table."""
    severities = sorted(numbers(args.severity))
    if not severities or not set(severities) <= set(range(1, 6)):
        raise InputError(f"--severity: expected levels from 1 to 5, as in 3, 1-5 or 1,3,5, got {args.severity!r}")
    check_out(args, args.figure, "figure", args.source)
    from acls.data.corruptions import CORRUPTIONS
    from acls.metrics.catalogue import metric
    from acls.watch.shift import is_network, of_model

    of_net, network = settings_of(args, "model."), is_network(args.source)
    if of_net and not network:
        raise InputError("a run has its own network: pass --model settings with a network's name instead of a run")
    data = data_of(args, DataOptions() if network and "data.name" in settings_of(args) else None)
    model = override(ModelOptions(), of_net) if network else None
    names = list(CORRUPTIONS) if args.corruptions == "all" else [name.strip() for name in args.corruptions.split(",")]
    chosen = {"corruptions": names, "severities": severities, "limit": args.limit, "seed": args.seed}
    if sys.stderr.isatty() and not args.quiet:
        ece = metric("ece")
        chosen["note"] = lambda one: print(f"{one.corruption} {one.severity}: {ece.phrase(one.ece)}", file=sys.stderr)
    found = of_model(args.source, data=data, model=model, **chosen)
    say(args, found)
    if args.figure is not None:
        from acls.report.figures.shift import plot
        from acls.report.figures.style import save

        save(plot(found), args.figure)
