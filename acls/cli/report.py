"""Write a page about runs, studies or saved predictions: verdict, tables, interactive diagrams, in one offline file.

`acls train` writes a run, `acls compare` writes a study. Several runs or files are compared on one page. Files are
measured as in `acls evaluate`, and again after temperature scaling, where each half of the rows is scaled by the
temperature fitted on the other half.

Examples:
  acls report runs/digits_cnn-ACLS-1 --open
  acls report studies/digits_cnn --figures figures --format pdf
  acls report before.npz after.npz --table latex
  acls report nets.npz --logits resnet20 --logits resnet56
  acls report preds.csv --probs p0,p1,p2 --label y --images pictures/

"""

import argparse
import webbrowser
from dataclasses import replace

from acls.cli.common import add_columns, add_shared, models_of, say
from acls.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls report``."""
    files = "folder of a run, of several or of a study; file of predictions"
    parser.add_argument("files", metavar="RUN|STUDY|FILE", nargs="+", help=files)
    parser.add_argument("--out", metavar="FILE", help="the page (default: report.html, in the folder if one is given)")
    parser.add_argument("--open", action="store_true", help="show the page in the browser")
    parser.add_argument("--title", help="heading of the page")
    parser.add_argument("--figures", metavar="DIR", help="also write every figure into this folder")
    forms = ("png", "svg", "pdf")
    parser.add_argument("--format", dest="form", choices=forms, default="png", help="format of the figures")
    parser.add_argument("--table", choices=("text", "markdown", "latex", "csv"), help="also print the table")
    parser.add_argument(
        "--images", metavar="DIR|FILE", help="pictures of the rows, in the same order: a folder, .npy or .npz"
    )
    about = "print one JSON object: the verdict, and what was written"
    add_shared(parser, "force", "bootstrap", "max_error", json=about, quiet="print no verdict")
    add_columns(parser, several=True)


def run(args: argparse.Namespace) -> None:
    """Measure, write the page, and print its path."""
    from acls.front import report_files
    from acls.report.page.sources import holds_runs

    folders = [path for path in args.files if holds_runs(path)]
    files = [path for path in args.files if path not in folders]
    if not files and (args.logits or args.probs or args.log_probs or args.images):
        raise InputError("--images and names of scores apply to files of predictions, got only folders of runs")
    names = ("out", "title", "figures", "form", "table", "images", "max_error", "ignore_index", "force")
    settings = {name: getattr(args, name) for name in names}
    found = report_files([*folders, *models_of(args, files)], replicates=args.bootstrap, **settings)
    say(args, replace(found, verdict=(), decisions=()) if args.quiet and not args.json else found)
    if args.open:
        webbrowser.open(found.page.absolute().as_uri())
