"""The page: one self-contained HTML file about runs, studies or files of predictions, which opens offline."""

from __future__ import annotations

from acls.report.page.build import render, results, write
from acls.report.page.sources import Unfinished, holds_runs, of_file, of_path, of_run, of_study
from acls.report.page.subjects import Subject, rank_subjects, told_apart

__all__ = [
    "Subject",
    "Unfinished",
    "holds_runs",
    "of_file",
    "of_path",
    "of_run",
    "of_study",
    "rank_subjects",
    "render",
    "results",
    "told_apart",
    "write",
]
