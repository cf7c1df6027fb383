"""Write a page about runs, studies or saved predictions: verdict, tables, interactive diagrams, in one offline file.

A run is what `acls train` wrote, a study what `acls compare` wrote; several runs or files are compared on one page.
Files are measured as by `acls evaluate`, and once more after temperature scaling, each half of the rows scaled by the
temperature of the other half.

Examples:
  acls report runs/digits_cnn-ACLS-1 --open
  acls report studies/digits_cnn --figures figures --format pdf
  acls report before.npz after.npz --table latex
  acls report nets.npz --logits resnet20 --logits resnet56
  acls report preds.csv --probs p0,p1,p2 --label y --images pictures/

"""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from acls.cli.common import Line, add_columns, add_shared, check_out, models_of, note, say
from acls.errors import InputError

if TYPE_CHECKING:
    from acls.report.page.sources import Unfinished
    from acls.report.page.subjects import Subject


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls report``."""
    files = "folder of a run, of several or of a study; file of predictions"
    parser.add_argument("files", metavar="RUN|STUDY|FILE", nargs="+", help=files)
    parser.add_argument("--out", metavar="FILE", help="the page (default: report.html, in the folder if one is given)")
    parser.add_argument("--open", action="store_true", help="show the page in the browser")
    parser.add_argument("--title", help="heading of the page")
    parser.add_argument("--figures", metavar="DIR", help="also write every figure into this folder")
    parser.add_argument("--format", choices=("png", "svg", "pdf"), default="png", help="format of the figures")
    parser.add_argument("--table", choices=("text", "markdown", "latex", "csv"), help="also print the table")
    parser.add_argument("--images", metavar="DIR|FILE", help="pictures of the rows: a folder, .npy or .npz, in order")
    told = "print one JSON object: the verdict, and what was written"
    add_shared(parser, "force", "bootstrap", "max_error", json=told, quiet="print no verdict")
    add_columns(parser, several=True)


def run(args: argparse.Namespace) -> None:
    """Measure, write, and say where it is."""
    from acls.report.gallery import write_figures
    from acls.report.page.build import results, write
    from acls.report.page.overview import decisions, verdict
    from acls.report.page.subjects import rank_subjects
    from acls.report.results import marks_of, signs

    folder = args.files[0] if len(args.files) == 1 and Path(args.files[0]).is_dir() else ""
    page = Path(args.out or Path(folder, "report.html"))
    check_out(args, page, "page", *args.files, args.images)
    subjects = _subjects(args)
    ranked = rank_subjects(subjects) if args.bootstrap else []
    write(subjects, page, title=args.title, ranked=ranked, max_error=args.max_error)
    figures = write_figures(subjects, args.figures, args.format, force=args.force) if args.figures else []
    tables = [table.show(args.table) for table in results(subjects, ranked)] if args.table else []
    told = verdict(subjects, ranked)
    chosen = [] if args.max_error is None else decisions(subjects, args.max_error)
    files = {"report": str(page), "figures": [str(path) for path in figures]}
    plain = {"verdict": told, "decisions": chosen, "models": [one.plain() for one in subjects], **files}
    parts = [] if args.quiet else [*told, *chosen, ""]
    parts += [Line(f"{table}\n") for table in tables]
    parts += [signs(), ""] if args.table == "text" and marks_of(ranked) else []
    parts += [Line(f"figures: {len(figures)} in {args.figures}")] if figures else []
    say(args, {**plain, "tables": tables}, [*parts, Line(f"report: {page}")])
    if args.open:
        webbrowser.open(page.absolute().as_uri())


def _subjects(args: argparse.Namespace) -> list[Subject]:
    from acls.report.page.sources import holds_runs, of_file, of_path
    from acls.report.page.subjects import told_apart

    folders = [path for path in args.files if holds_runs(path)]
    files = [path for path in args.files if path not in folders]
    if not files and (args.logits or args.probs or args.log_probs or args.images):
        raise InputError("--images and names of scores are for files of predictions, got only folders of runs")
    skipped: list[Unfinished] = []
    found = [subject for path in folders for subject in of_path(path, replicates=args.bootstrap, skipped=skipped)]
    common = {"ignore_index": args.ignore_index, "replicates": args.bootstrap, "images": args.images}
    found += [of_file(path, columns, title=title, **common) for title, path, columns in models_of(args, files)]
    if not found:
        raise skipped[0]
    for one in skipped:
        note(args, f"left out: {one}")
    return told_apart(found)
