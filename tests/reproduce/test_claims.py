"""A claim is reproduced, or not, only where seeds and samples leave no doubt."""

import json
import math
from dataclasses import asdict, replace

import pytest

from acls.metrics.estimates import Estimate
from acls.metrics.significance import SeedDifference
from acls.options import to_plain
from acls.reproduce import published
from acls.reproduce.claims import Claim, judge, summarise, verdict_on
from acls.reproduce.experiments import EXPERIMENTS, FORMS, LINES, label_of, lines_of
from acls.results import Record, Result

CLAIM = Claim("ACLS", "CE")


def rows(values, half_width=0.001, accuracy=0.9):
    return [
        Record(
            "any",
            seed,
            "none",
            Result(
                1000,
                {
                    "accuracy": Estimate(accuracy, None, accuracy - 0.001, accuracy + 0.001),
                    "ece": Estimate(value, None, value - half_width, value + half_width),
                },
            ),
            {},
        )
        for seed, value in enumerate(values)
    ]


def test_a_clear_difference_is_reproduced_and_its_opposite_is_not():
    low, high = rows([0.010, 0.011, 0.012]), rows([0.050, 0.052, 0.051])
    assert judge(CLAIM, low, high).verdict == "reproduced"
    assert judge(CLAIM, high, low).verdict == "not reproduced"
    assert judge(CLAIM, low, high).difference.value == pytest.approx(-0.04)


def test_seeds_that_disagree_leave_it_open():
    assert judge(CLAIM, rows([0.01, 0.06, 0.02]), rows([0.05, 0.03, 0.04])).verdict == "undecided"


def test_few_test_samples_leave_it_open_however_the_seeds_agree():
    low, high = [0.010, 0.011, 0.012], [0.020, 0.021, 0.022]
    assert judge(CLAIM, rows(low), rows(high)).verdict == "reproduced"
    assert judge(CLAIM, rows(low, half_width=0.02), rows(high, half_width=0.02)).verdict == "undecided"


def test_one_seed_tells_nothing():
    judged = judge(CLAIM, rows([0.01]), rows([0.05]))
    assert judged.verdict == "undecided"
    assert math.isinf(judged.difference.high)


def test_only_seeds_that_both_have_count():
    assert judge(CLAIM, rows([0.01, 0.01]), rows([0.05, 0.05, 0.9])).difference.seeds == 2
    assert judge(CLAIM, [], rows([0.05])) is None


def test_the_interval_is_students_by_hand():
    found = judge(CLAIM, rows([0.0, 0.0, 0.0], 0.0), rows([0.01, 0.02, 0.03], 0.0)).difference
    assert found.high - found.value == pytest.approx(4.302653 * 0.01 / math.sqrt(3))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_printed_row_is_a_line_and_every_claim_is_about_two_of_them(name):
    experiment = EXPERIMENTS[name]
    for printed in experiment.printed.values():
        assert set(printed) == {line.row for line in experiment.lines().values()}
    for paper in experiment.printed:
        for claim in experiment.claims(paper):
            for form in FORMS:
                label_of(experiment.lines(), claim.lower, form)
                label_of(experiment.lines(), claim.higher, form)


def test_every_row_of_acls_is_there_as_the_authors_ran_it_and_as_eq_13():
    for experiment in EXPERIMENTS.values():
        for line in experiment.lines().values():
            if line.method.name == "ACLS":
                both = [one for one in experiment.lines().values() if one.row == line.row]
                assert [one.method.fields["form"] for one in both] == ["released", "paper"]
    assert label_of(EXPERIMENTS["table3"].lines(), "ACLS", "authors' code") == "ACLS (authors' code)"
    chosen = lines_of(["ACLS", "CE"], "stopped")
    assert list(chosen) == ["ACLS (authors' code)", "ACLS (Eq. 13)", "ACLS (stopped)", "CE"]


def test_what_the_paper_ties_or_loses_is_not_claimed():
    """ACLS and MbLS tie at an AECE of 3.25; in Table 5 AR alone has the lower AECE on ResNet-101."""
    told = {str(claim) for claim in EXPERIMENTS["table3"].claims("cifar10_resnet101")}
    assert "ECE: ACLS < MbLS" in told
    assert "AECE: ACLS < MbLS" not in told
    ablation = {str(claim) for claim in EXPERIMENTS["table5"].claims("tiny_imagenet_resnet101")}
    assert "ECE: ACLS < ACLS, AR only" in ablation
    assert "AECE: ACLS < ACLS, AR only" not in ablation
    ten_bins = {str(claim) for claim in EXPERIMENTS["tableB"].claims("tiny_imagenet_resnet50")}
    assert "ECE: ACLS < Patra" in ten_bins


def test_a_lower_error_at_the_cost_of_accuracy_reproduces_nothing():
    low, high = rows([0.010, 0.011, 0.012], accuracy=0.62), rows([0.050, 0.052, 0.051], accuracy=0.92)
    judged = judge(CLAIM, low, high)
    assert judged.note == "loses 30.0 points of accuracy"
    assert judged.verdict == "not reproduced"
    assert judge(Claim("ACLS", "CE", "accuracy"), low, high).verdict == "not reproduced"
    kept = judge(Claim("ACLS", "CE", "accuracy"), rows([0.01] * 3, accuracy=0.92), high)
    assert kept.verdict == "reproduced"


def test_a_loss_of_accuracy_that_seeds_leave_in_doubt_leaves_a_lower_error_in_doubt():
    low, high = rows([0.010, 0.011, 0.012]), rows([0.050, 0.052, 0.051])
    collapsed = rows([0.012], accuracy=0.32)[0]
    judged = judge(CLAIM, [*low[:2], replace(collapsed, seed=2)], high)
    assert judged.note == "loses 19.3 points of accuracy"
    assert judged.verdict == "undecided"


def test_a_loss_of_exactly_a_point_is_not_more_than_one():
    """0.549 - 0.559 is a little below -0.01 in binary."""
    low, high = rows([0.010, 0.011, 0.012], accuracy=0.549), rows([0.050, 0.052, 0.051], accuracy=0.559)
    judged = judge(CLAIM, low, high)
    assert (judged.verdict, judged.note) == ("reproduced", "")


def test_of_a_claim_on_two_pages_the_summary_counts_the_one_with_more_seeds(tmp_path):
    """As after `all --seeds 1` and then `table3 --seeds 3`, whichever page comes last."""
    few, many = judge(CLAIM, rows([0.01]), rows([0.05])), judge(CLAIM, rows([0.01] * 3), rows([0.05] * 3))
    for first, last in ((few, many), (many, few)):
        for name, one in (("table1", first), ("table3", last)):
            claims = [{**asdict(one), **asdict(one.difference)}]
            text = {"name": name, "title": "", "scale": "mini", "seeds": "1", "claims": claims}
            (tmp_path / f"{name}.json").write_text(json.dumps(to_plain(text)))
        summarise(tmp_path, ["table1", "table3"])
        assert "Of 1 distinct claims" in (tmp_path / "summary.md").read_text()
        assert "1 reproduced, 0 not reproduced, 0 undecided" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.02, 0.03, "reproduced"), (0.7, 0.8, "not reproduced"), (0.05, 0.2, "undecided")],
)
def test_a_share_is_the_papers_to_within_a_tolerance(low, high, verdict):
    assert verdict_on(SeedDifference((low + high) / 2, low, high, 0.5, 3, None), -0.1, 0.1) == verdict


def test_the_papers_own_numbers_are_as_printed():
    assert len(published.TABLE_3) == 5
    assert all(len(rows) == 12 for rows in published.TABLE_3.values())
    assert published.TABLE_3["imagenet_resnet50"]["ACLS"] == (75.65, 1.02, 1.20)
    assert published.TABLE_A["tiny_imagenet_resnet50"]["λ1 0.1, λ2 0.01"].ece == 1.31
    assert published.TABLE_A["tiny_imagenet_resnet50"]["λ1 0, λ2 0.015"].ece is None
    assert published.TABLE_B["tiny_imagenet_resnet50"]["Patra"] == (48.74, None, None)


def test_every_method_of_the_paper_is_a_line():
    from acls.recipes import find
    from acls.study.methods import methods_of

    for line in LINES.values():
        assert len(methods_of(find("digits_cnn"), [line.method])) == 1
