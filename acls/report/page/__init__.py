"""The page: one self-contained HTML file about runs, studies or files of predictions, which opens offline."""

from __future__ import annotations

from acls.report.page.build import render, results, write
from acls.report.page.naming import told_apart
from acls.report.page.ranking import rank_subjects
from acls.report.page.sources import Unfinished, holds_runs, of_file, of_path, of_run, of_study
from acls.report.page.subjects import Mistake, Record, Subject

__all__ = [
    "Mistake",
    "Record",
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
