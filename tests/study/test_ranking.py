"""Ranking: the best is marked where samples and seeds together say that it is no chance."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from acls.metrics.estimates import Estimate
from acls.predictions import Predictions
from acls.results import Record, Result, differences, evaluate
from acls.study.ranking import difference, rank
from acls.study.runs import evaluated


def network(method, seed, scale, draw, n=400):
    """A model whose logits are right in direction; the scale makes it over- or underconfident."""
    random = torch.Generator().manual_seed(draw)
    target = torch.randint(5, (n,), generator=random)
    logits = torch.nn.functional.one_hot(target, 5) + torch.randn(n, 5, generator=random)
    return Record(method, seed, "none", evaluated(Predictions(scale * logits, target, "logits")), {})


def made(method, seed, ece, accuracy=0.9, n=540):
    """A record of which nothing is known but its values, so that the seeds alone decide."""
    return Record(method, seed, "none", Result(n, {"ece": Estimate(ece), "accuracy": Estimate(accuracy)}), {})


def ece_of(records):
    (found,) = rank(records, ["ece"])
    return found


def test_the_interval_of_equal_counts_has_a_width():
    rows = {m: [made(m, s, 0.1, (hits + s) / 539, 539) for s in (0, 3)] for m, hits in (("CE", 527), ("ACLS", 534))}
    found = difference(rows["ACLS"], rows["CE"], "accuracy")
    width = stats.t.ppf(0.975, 1) / (539 * math.sqrt(6)) / math.sqrt(2)
    assert found.high - found.value == pytest.approx(width, rel=1e-6)


def test_one_record_without_a_debiased_estimate_makes_every_mean_and_difference_plain():
    """Else the difference of two methods that have them would not be that of their means."""
    estimates = {"a": Estimate(0.10, 0.08), "b": Estimate(0.13, 0.09), "old": Estimate(0.20)}
    records = [Record(m, s, "none", Result(500, {"ece": one}), {}) for m, one in estimates.items() for s in (1, 2)]
    assert ece_of(records[:4]).debiased
    found = ece_of(records)
    assert not found.debiased
    assert found.means == pytest.approx({"a": 0.10, "b": 0.13, "old": 0.20})
    assert found.to_baseline["b"].value == pytest.approx(0.03)


def test_a_large_difference_in_all_seeds_is_significant():
    records = [network(m, s, scale, s) for m, scale in (("fits", 1.2), ("shouts", 8.0)) for s in (1, 2, 3)]
    ece = ece_of(records)
    assert (ece.best, ece.next) == ("fits", "shouts")
    assert ece.significant
    assert ece.difference < 0
    assert ece.against["shouts"].high < 0


def test_methods_that_are_alike_are_not_told_apart_and_it_says_what_would_be_needed():
    records = [network(m, s, 1.2, 10 * i + s) for i, m in enumerate("AB") for s in (1, 2, 3)]
    found = rank(records, ["ece", "accuracy"])
    assert len(found) == 2
    assert not any(one.significant for one in found)
    needed = [found.needed for one in found for found in one.to_baseline.values()]
    assert all(seeds is None or seeds > 3 for seeds in needed)


def test_what_differs_from_seed_to_seed_is_not_significant_however_many_samples():
    """Each pair differs clearly on its samples, but once one is better, once the other."""
    of = {("A", 1): (1.2, 1), ("B", 1): (8.0, 1), ("A", 2): (6.0, 2), ("B", 2): (1.2, 2)}
    assert not ece_of([network(*name, *about) for name, about in of.items()]).significant


def test_the_best_has_to_beat_all_others_not_only_the_next():
    """The next is far behind in each seed; a third is as good on average, but varies from seed to seed."""
    values = {"best": (0.02, 0.021, 0.02), "steady": (0.05, 0.052, 0.051), "noisy": (0.001, 0.16, 0.001)}
    found = ece_of([made(m, s, ece) for m, eces in values.items() for s, ece in enumerate(eces)])
    assert (found.best, found.next) == ("best", "steady")
    assert found.against["steady"].p < 0.01
    assert not found.significant


def test_every_method_is_compared_with_the_first_and_corrected_for_their_number():
    values = {"CE": (0.10, 0.101, 0.102), "A": (0.01, 0.011, 0.013), "B": (0.05, 0.052, 0.051)}
    found = ece_of([made(m, s, ece) for m, eces in values.items() for s, ece in enumerate(eces)])
    assert found.baseline == "CE"
    assert list(found.to_baseline) == ["A", "B"]
    assert found.to_baseline["A"].value == pytest.approx(sum(values["A"]) / 3 - sum(values["CE"]) / 3)
    plain = stats.ttest_rel(values["B"], values["CE"]).pvalue
    assert found.to_baseline["B"].p == pytest.approx(2 * plain, rel=1e-3)
    assert max(one.p for one in found.to_baseline.values()) < 0.05


@pytest.mark.parametrize("apart", [0.0, 0.01, 0.02, 0.03, 0.05])
def test_an_interval_against_the_first_excludes_0_exactly_where_its_corrected_p_is_below_5_percent(apart):
    random = torch.Generator().manual_seed(0)
    eces = 0.1 + apart * torch.arange(6)[:, None] + 0.01 * torch.randn(6, 3, generator=random)
    found = ece_of([made(str(m), s, float(ece)) for m, row in enumerate(eces) for s, ece in enumerate(row)])
    assert len(found.to_baseline) == 5
    for one in found.to_baseline.values():
        assert (one.sign != 0) == (one.p < 0.05)


def test_files_compared_with_the_first_have_intervals_and_p_values_that_agree():
    scales = (1.0, 1.3, 1.6, 2.0, 3.0)
    results = {str(scale): evaluate(outputs(scale), compare=True) for scale in scales}
    found = [one for metrics in differences(results).comparisons.values() for one in metrics.values()]
    tested = [one for one in found if one.p is not None]
    assert {one.p < 0.05 for one in tested} == {True, False}
    for one in tested:
        assert (one.low > 0 or one.high < 0) == (one.p < 0.05)


def test_one_seed_marks_nothing():
    found = ece_of([network(m, 1, scale, 1) for m, scale in (("fits", 1.2), ("shouts", 8.0))])
    assert found.against["shouts"].seeds == 1
    assert not found.significant
    assert math.isinf(found.against["shouts"].high)


def test_files_are_compared_on_their_samples():
    records = [network(m, None, scale, 1) for m, scale in (("fits", 1.2), ("shouts", 8.0))]
    with_blocks = [
        replace(one, result=evaluate(p, compare=True))
        for one, p in zip(records, (outputs(1.2), outputs(8.0)), strict=True)
    ]
    ece = ece_of(with_blocks)
    assert ece.best == "fits"
    assert ece.significant
    assert rank(records, ["ece"]) == []  # what comparing needs was not kept


def outputs(scale):
    random = torch.Generator().manual_seed(1)
    target = torch.randint(5, (400,), generator=random)
    logits = torch.nn.functional.one_hot(target, 5) + torch.randn(400, 5, generator=random)
    return Predictions(scale * logits, target, "logits")


def test_higher_accuracy_is_better_and_lower_error():
    rows = [made("A", s, 0.1, accuracy=0.9) for s in (1, 2)] + [made("B", s, 0.2, accuracy=0.95) for s in (1, 2)]
    assert {one.metric: one.best for one in rank(rows, ["ece", "accuracy"])} == {"ece": "A", "accuracy": "B"}


def test_the_question_asked_is_the_ece_as_trained_and_what_else_is_ranked_is_corrected_for_its_number():
    values = {"A": (0.01, 0.012, 0.011), "B": (0.05, 0.052, 0.054)}
    rows = [made(m, s, ece, 1 - ece) for m, eces in values.items() for s, ece in enumerate(eces)]
    rows += [replace(one, posthoc="Temperature") for one in rows]
    found = {(one.posthoc, one.metric): one.p for one in rank(rows, ["accuracy", "ece"])}
    (alone,) = rank(rows[:6], ["ece"])
    (accuracy,) = rank(rows[:6], ["accuracy"])
    assert list(found) == [(posthoc, metric) for posthoc in ("none", "Temperature") for metric in ("accuracy", "ece")]
    assert found["none", "ece"] == alone.p
    assert found["Temperature", "ece"] == pytest.approx(3 * min(alone.p, accuracy.p))


def test_the_first_method_after_a_post_hoc_method_is_compared_with_itself_and_costs_the_others_nothing():
    values = {"CE": (0.10, 0.101, 0.102), "A": (0.05, 0.052, 0.051), "B": (0.09, 0.088, 0.091)}
    rows = [made(m, s, ece) for m, eces in values.items() for s, ece in enumerate(eces)]
    scaled = [
        replace(made(m, s, ece / 10), posthoc="Temperature") for m, e in values.items() for s, ece in enumerate(e)
    ]
    as_is, after = rank([*rows, *scaled], ["ece"])
    assert as_is.best == "A"
    assert list(as_is.against) == ["B", "CE"]
    assert list(as_is.to_baseline) == ["A", "B"]
    assert as_is.scaled["CE after Temperature"].value == pytest.approx(-0.9 * 0.101)
    assert as_is.to_baseline == rank(rows, ["ece"])[0].to_baseline
    assert after.scaled == {}


def test_one_method_alone_is_not_ranked():
    assert rank([made("A", 1, 0.1)], ["ece"]) == []


def test_only_seeds_that_both_have_are_compared():
    rows = [made("A", 1, 0.1), made("A", 2, 0.1), made("A", 3, 0.11), made("B", 2, 0.3), made("B", 3, 0.32)]
    ece = ece_of(rows)
    assert math.isclose(ece.difference, -0.205)
    assert ece.against["B"].seeds == 2
