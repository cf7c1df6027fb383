"""Reproduce a table or figure of the paper: train its models, and show our numbers beside those of the paper.

ACLS is trained in the authors' own form, on which the paper's claims are judged, and as Eq. 13. Each claim gets a
verdict from our own runs: reproduced, not reproduced, or undecided. ``--scale mini``
trains small versions for a CPU on the available data, or on embedded data if there is none; ``--scale paper``
follows the full protocols and needs all data sets of the targets. There, ``--devices`` applies to ImageNet, which is
trained on four GPUs. Tables share their runs, and finished runs are not trained again. Any setting of the recipes can
be changed, for example with ``--epochs 5``.

Examples:
  acls reproduce figure1 table2
  acls reproduce table5 --data tiny_imagenet=tiny_imagenet_20c.zip --seeds 3
  acls reproduce all --scale mini --seeds 2 --epochs 2
  acls reproduce table1 table5 --scale paper --data tiny_imagenet=DIR

"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from acls.cli.common import add_shared, check_out, continued, engine_of, say
from acls.cli.settings import add_settings, full_path, settings_of
from acls.errors import InputError, suggest
from acls.options import leaves, number
from acls.recipes import Recipe

NAMES = ("table1", "table2", "table3", "table4", "table5", "table6", "tableA", "tableB",
         "figure1", "figure2", "figure3", "figureA", "statistics")  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls reproduce``."""
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"all, or any of {', '.join(NAMES)}")
    scale = "small versions for a CPU, or the full protocols"
    parser.add_argument("--scale", choices=("mini", "paper"), default="mini", help=scale)
    data = "path of a data set; may be repeated"
    parser.add_argument("--data", action="append", default=[], metavar="NAME=PATH", help=data)
    form = "an additional form of ACLS; not in figures 1 and 2"
    parser.add_argument("--loss.form", dest="form", metavar="FORM", help=form)
    parser.add_argument("--seeds", type=number(int, "[1, 1000]"), default=3, help="runs of each method")
    parser.add_argument("--out", default="reproduced", metavar="DIR", help="folder of the runs, tables and figures")
    add_shared(parser, "json", "engine", "address", "workers", "wait", "force", quiet="no progress bar, no tables")
    fixed = ("seed", "data.name", "data.root", "model.name")
    known = {name: leaf for name, leaf in leaves(Recipe).items() if name not in fixed and not name.startswith("loss.")}
    add_settings(parser, known)


def run(args: argparse.Namespace) -> int:
    """Reproduce the named tables and figures in the given order."""
    from acls.reproduce import Setup, papers_of, reproduce
    from acls.reproduce.claims import NAME

    names = list(NAMES) if args.names == ["all"] else args.names
    for name in names:
        if name == "all":
            raise InputError("'all' means every table and figure: pass it alone, or the names that you want")
        if name not in NAMES:
            raise InputError(f"there is no table or figure {name!r}{suggest(name, [*NAMES, 'all'])}")
    if args.form is not None:
        from acls.losses import make_loss

        make_loss("ACLS", form=args.form)  # raises for a form that does not exist
    roots = _roots(args.data)
    check_out(args, args.out, "reproduction", *roots.values())
    setup = Setup(
        Path(args.out),
        engine_of(args),
        scale=args.scale,
        roots=roots,
        seeds=tuple(range(1, args.seeds + 1)),
        settings=settings_of(args),
        show=not (args.quiet or args.json),
        wait=args.wait,
        form=args.form,
    )
    setup.check_data(paper for name in names for paper in papers_of(name))
    results = []
    for name in names:
        with continued(f"the same command continues at {name}, in {setup.out}"):
            result = reproduce(name, setup)
        results.append(result)
        if not args.json:  # print each result when it is done: the next one may take hours
            if not args.quiet:
                print(result.shown())
            print(f"{name}: {setup.out / f'{name}.md'}" + "".join(f", {file}" for file in result.files))
    found = {"folder": str(setup.out), "results": [result.plain() for result in results]}
    say(args, found, f"summary of all results: {setup.out / NAME}")
    return int(any(result.failed for result in results))


def _roots(given: Sequence[str]) -> dict[str, str]:
    """Return the path of each data set. An unknown name or path is an error: no substitute must be used."""
    from acls.reproduce.experiments import data_sets

    roots = {}
    for words in given:
        name, found, path = words.partition("=")
        if not found:
            raise InputError(f"--data {words}: expected NAME=PATH, as in cifar10=cifar10_train.zip")
        if name not in data_sets():
            raise InputError(f"--data {words}: the paper has no data set {name!r}{suggest(name, data_sets())}")
        roots[name] = full_path(path)
        if not Path(roots[name]).exists():
            raise InputError(f"--data {words}: there is no {path}")
    return roots
