"""The `Result` of a set of predictions, which is computed once and used by tables, pages and JSON, and its meaning."""

from acls.results.comparing import Differences, ModelResults, ProtocolResults, differences
from acls.results.counting import Counts, count, evaluate, measure
from acls.results.recommending import Advice, Candidate, recommend
from acls.results.result import LEVEL, Record, Result
from acls.results.words import Verdict, effect, show_p, verdict

__all__ = [
    "LEVEL", "Advice", "Candidate", "Counts", "Differences", "ModelResults", "ProtocolResults", "Record", "Result",
    "Verdict", "count", "differences", "effect", "evaluate", "measure", "recommend", "show_p", "verdict",
]  # fmt: skip
