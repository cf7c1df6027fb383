import math
from dataclasses import replace

import pytest

from acls.errors import InputError
from acls.metrics.estimates import Estimate
from acls.metrics.significance import SeedDifference
from acls.report.results import about_baseline, about_ranking, baseline_table, marks_of, results_table
from acls.report.tables import Table
from acls.results import Record, Result
from acls.study.ranking import Ranked


def row(method, seed, ece, posthoc="none", n=100, **protocol):
    return Record(method, seed, posthoc, Result(n, {"ece": Estimate(ece)}), {"bins": 15, **protocol})


ROWS = [row("CE", 1, 0.05), row("CE", 2, 0.07), row("ACLS", 1, 0.02), row("ACLS", 2, 0.03)]


def test_a_line_a_method_with_mean_spread_seeds_and_n():
    table = results_table(ROWS, ["ece"])
    assert list(table.header) == ["method", "post-hoc", "ECE %", "seeds", "n"]
    assert [list(line) for line in table.rows] == [
        ["CE", "none", "6.00 ± 1.41", "2", "100"],
        ["ACLS", "none", "2.50 ± 0.71", "2", "100"],
    ]


def test_rows_of_different_protocols_are_refused_with_the_difference():
    with pytest.raises(InputError, match="CE and ACLS cannot be in one table: bins is 15 for one, 25 for the other"):
        results_table([ROWS[0], row("ACLS", 1, 0.02, bins=25)])
    with pytest.raises(InputError, match="background"):
        results_table([ROWS[0], row("ACLS", 1, 0.02, background="left out")])


def test_a_metric_that_is_not_known_leaves_its_cell_empty():
    unknown = replace(ROWS[0], result=Result(100, {}))
    assert results_table([unknown], ["ece", "nll"]).rows[0][2:4] == ("", "")


@pytest.mark.parametrize(("p", "expected"), [(0.01, {(1, 2): "best", (0, 2): "second"}), (0.2, {})])
def test_the_best_is_marked_only_where_it_differs_by_more_than_chance(p, expected):
    against = {"CE": SeedDifference(-0.035, -0.05, -0.02, p, 2, 2)}
    ranked = [Ranked("ACLS", p, against, against, {"CE": 0.06, "ACLS": 0.025}, "ece", "none", "CE", {}, True)]
    assert results_table(ROWS, ["ece"], marks=marks_of(ranked)).marks == expected


SURE, UNSURE = SeedDifference(-0.03, -0.04, -0.02, 0.01, 3, 2), SeedDifference(-0.01, -0.05, 0.03, 0.6, 2, 9)
LEAD = "ACLS has the lowest ECE, 2.00 % debiased, "


def ranked_by(found, others=(), p=None, best="ACLS", first="CE"):
    """A ranking of two methods, and others, where ``found`` is the difference to the first."""
    to_baseline = {"ACLS": found, **dict.fromkeys(others, UNSURE)}
    against = {name: replace(found, value=-abs(found.value)) for name in ("CE" if best == "ACLS" else "ACLS", *others)}
    means = {"ACLS": 0.02, "CE": 0.05}
    return Ranked(best, found.p if p is None else p, against, to_baseline, means, "ece", "none", first, {}, True)


@pytest.mark.parametrize(
    ("ranked", "told"),
    [
        (ranked_by(SURE), LEAD + "3.00 points below CE (95 % interval 2.00 to 4.00; p = 0.010)."),
        (ranked_by(SURE, ["LS"], p=0.02), "p = 0.010); it differs from every other method's (p = 0.020)."),
        (ranked_by(SURE, ["LS"], p=0.2), "p = 0.010); another method may be as good (p = 0.200)."),
        (ranked_by(UNSURE),
         LEAD + "1.00 points below CE, which may be chance (95 % interval 3.00 above to 5.00 below; p = 0.600): "
         "telling them apart would take about 9 seeds."),
        (ranked_by(replace(UNSURE, needed=None)), ": telling them apart would take more test samples."),
        (ranked_by(SeedDifference(-0.01, -math.inf, math.inf, 1.0, 1, None)), "one seed cannot tell this from chance"),
        (ranked_by(SeedDifference(0.02, 0.01, 0.03, 0.01, 3, 2), best="CE"),
         "CE has the lowest ECE, 5.00 % debiased, 2.00 points below ACLS (95 % interval 1.00 to 3.00; p = 0.010)."),
    ],
)  # fmt: skip
def test_the_sentence_on_a_ranking_says_how_sure_it_is_and_what_it_would_take(ranked, told):
    assert told in about_ranking(ranked)


def test_a_method_that_differs_from_every_other_is_not_said_to_be_no_better_than_the_first():
    """Its corrected interval holds 0, but what is told of it is that it differs from each."""
    ranked = ranked_by(UNSURE, ["LS"], p=0.02)
    sentence = about_ranking(replace(ranked, against=dict.fromkeys(ranked.against, SURE)))
    assert sentence.startswith(
        LEAD + "3.00 points below CE (95 % interval 2.00 to 4.00; p = 0.010); it differs from ev"
    )


@pytest.mark.parametrize(("debiased", "title"), [(True, "debiased"), (False, "value")])
def test_only_estimates_without_the_bias_of_noise_are_called_debiased(debiased, title):
    ranked = replace(ranked_by(SURE), debiased=debiased)
    assert baseline_table(ranked).header[1] == title
    told = [about_ranking(ranked), about_baseline(ranked)]
    assert ["debiased" in sentence for sentence in told] == [debiased, debiased]


def test_the_sentence_on_the_baseline_names_each_number_of_tests_that_its_table_is_corrected_for():
    two, three = (dict.fromkeys(range(many), SURE) for many in (2, 3))
    start = "Against CE: differences of debiased estimates, which lack the bias of noise; intervals and p-values over "
    told = about_baseline(replace(ranked_by(SURE), to_baseline=two, scaled=three))
    assert told == start + "seeds and test samples, corrected for 2 methods and for 3 post-hoc methods (Bonferroni)."
    one = {"ACLS": replace(SURE, seeds=1)}  # two files of predictions
    assert about_baseline(replace(ranked_by(SURE), to_baseline=one, scaled=three)) == (
        start + "test samples, corrected for 3 post-hoc methods (Bonferroni)."
    )


def test_columns_are_hidden_before_a_table_is_wider_than_the_terminal():
    table = results_table(ROWS, ["accuracy", "ece", "aece", "nll"])
    assert "n" in table.text().splitlines()[0].split()
    narrow = table.text(44)
    assert max(map(len, narrow.splitlines())) <= 44
    assert "ECE %" in narrow
    assert "6.00 ± 1.41" in narrow


def test_a_table_that_no_terminal_holds_is_a_paragraph_per_row():
    wide = Table(["method", "", "formula"], [["MDCA", "printed", "x " * 60], ["CE", "", "0"]])
    text = wide.fitted(80)
    assert text.startswith("method: MDCA; printed; formula: x x")
    assert text.endswith("method: CE; formula: 0")
    assert max(map(len, text.splitlines())) <= 80
    assert wide.fitted(200) == wide.text()
