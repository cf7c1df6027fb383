"""Which method on a page is best, by the tests of `acls.study.ranking`."""

from __future__ import annotations

from collections.abc import Sequence

from acls.errors import InputError
from acls.metrics import Blocks
from acls.report.page.subjects import Subject, by_protocol, lines, same_samples
from acls.report.results import RANKED
from acls.study.ranking import Ranked, rank
from acls.study.store import Row


def rank_subjects(subjects: Sequence[Subject]) -> list[Ranked]:
    """The best by each metric against the next; nothing where samples or protocols are not the same."""
    if len(by_protocol(lines(subjects))) > 1 or not same_samples(subjects):
        return []
    rows, recount = [], {}
    for subject in subjects:
        for state in subject.states:
            if state.blocks is None:
                continue
            row = Row(
                subject.method, subject.seed or 0, "", state.name, "test", state.n, dict(state.numbers),
                dict(state.protocol), 0.0, "", {},
            )  # fmt: skip
            rows.append(row)
            recount[id(row)] = state.blocks

    def blocks(row: Row) -> Blocks:
        return recount[id(row)]()

    try:
        return rank(rows, RANKED, blocks)
    except InputError:  # other units
        return []
