from dataclasses import replace

import pytest

from acls.errors import InputError
from acls.report.results import marks_of, results_table
from acls.study.ranking import Ranked
from acls.study.store import Row


def row(method, seed, ece, posthoc="none", n=100, **protocol):
    number = {"value": ece, "low": None, "high": None, "floor": None, "floor_high": None}
    return Row(method, seed, "r", posthoc, "test", n, {"ece": number}, {"bins": 15, **protocol}, 1.0, "", {})


ROWS = [row("CE", 1, 0.05), row("CE", 2, 0.07), row("ACLS", 1, 0.02), row("ACLS", 2, 0.03)]


def test_a_line_a_method_with_mean_spread_seeds_and_n():
    table = results_table(ROWS, ["ece"])
    assert list(table.header) == ["method", "post-hoc", "ECE %", "seeds", "n"]
    assert [list(line) for line in table.rows] == [
        ["CE", "none", "6.00 ± 1.41", "2", "100"],
        ["ACLS", "none", "2.50 ± 0.71", "2", "100"],
    ]


def test_rows_of_different_protocols_are_refused_with_the_difference():
    with pytest.raises(InputError, match="CE and ACLS cannot stand in one table: bins is 15 for one, 25 for the other"):
        results_table([ROWS[0], row("ACLS", 1, 0.02, bins=25)])
    with pytest.raises(InputError, match="background"):
        results_table([ROWS[0], row("ACLS", 1, 0.02, background="left out")])


def test_a_metric_that_is_not_known_leaves_its_cell_empty():
    unknown = replace(ROWS[0], metrics={"ece": {**ROWS[0].metrics["ece"], "value": None}})
    assert results_table([unknown], ["ece", "nll"]).rows[0][2:4] == ("", "")


@pytest.mark.parametrize(("p", "expected"), [(0.01, {(1, 2): "best", (0, 2): "second"}), (0.2, {})])
def test_the_best_is_marked_only_where_it_differs_by_more_than_chance(p, expected):
    ranked = [Ranked("ece", "none", best="ACLS", next="CE", difference=-0.035, p=p)]
    assert results_table(ROWS, ["ece"], marks=marks_of(ranked)).marks == expected
