"""Which method on a page is best, by the tests of `acls.study.ranking`."""

from __future__ import annotations

from collections.abc import Sequence

from acls.errors import InputError
from acls.report.page.subjects import Subject, by_protocol, records, same_samples
from acls.report.results import RANKED
from acls.study.ranking import Ranked, rank


def rank_subjects(subjects: Sequence[Subject]) -> list[Ranked]:
    """The best by each metric against all others; nothing where samples or protocols are not the same."""
    if len(by_protocol(records(subjects))) > 1 or not same_samples(subjects):
        return []
    try:
        return rank(records(subjects), RANKED)
    except InputError:  # other units
        return []
