"""The judge measures on folds left out, and advises to leave a model alone that fitting would not help."""

import pytest
import torch

from acls.calibrators import LTS, Histogram, Isotonic, Temperature, Vector, judge
from acls.calibrators.calibration_set import CalibrationSet
from acls.calibrators.cross_validation import _recommend
from acls.errors import InputError
from tests.calibrators.synthetic import overconfident, well_calibrated


def test_overconfidence_is_worth_fixing():
    told = judge(Temperature(), *overconfident(n=2000))
    assert told.use
    assert told.after.nll < told.before.nll
    assert told.after.ece < told.before.ece
    assert "use it" in str(told)


def test_a_calibrated_model_is_kept_as_it_is():
    told = judge(Temperature(), *well_calibrated(n=2000))
    assert not told.use
    assert "keep the model as it is" in told.why


def test_the_ece_objects_only_beyond_twice_its_standard_error():
    assert _recommend(nll_change=-0.1, nll_se=0.01, ece_change=0.019, ece_se=0.01, learned=1)[0]
    use, why = _recommend(nll_change=-0.1, nll_se=0.01, ece_change=0.021, ece_se=0.01, learned=1)
    assert not use
    assert "the ECE rises by 2.10 points" in why


def test_numbers_are_held_out():
    logits, target = well_calibrated(n=300, k=5)
    overfitted = Isotonic(guard=False).fit(logits, target)
    told = judge(Isotonic(guard=False), logits, target)
    assert overfitted.report.after.nll < overfitted.report.before.nll
    assert told.after.nll > told.before.nll
    assert not told.use


def test_order_changes_nothing():
    logits, target = overconfident(n=500)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    assert judge(Vector(strength=1.0), logits, target) == judge(Vector(strength=1.0), logits[order], target[order])


def test_the_calibrator_itself_is_not_fitted():
    calibrator = Histogram()
    judge(calibrator, *overconfident(n=200))
    assert not calibrator.fitted


def test_folds_have_equal_sizes_and_keep_groups_and_maps_together():
    logits, target = overconfident(n=600, k=4)
    group = torch.arange(60).repeat_interleave(10)
    rows = CalibrationSet(logits, target, group=group, ignore_index=-100)
    folds = rows.folds(5)
    assert folds.bincount().tolist() == [120] * 5
    of_group = {}
    order = {tuple(row.tolist()): int(g) for row, g in zip(logits, group, strict=True)}
    for row, fold in zip(rows.all()[0], folds.tolist(), strict=True):
        assert of_group.setdefault(order[tuple(row.tolist())], fold) == fold


def test_maps_are_judged_whole():
    logits, target = overconfident(n=20 * 16, k=3)
    maps, labels = logits.reshape(20, 4, 4, 3).movedim(-1, 1), target.reshape(20, 4, 4)
    told = judge(LTS(steps=3), maps, labels, folds=4)
    assert told.before.nll == pytest.approx(float(torch.nn.functional.cross_entropy(maps, labels)), rel=1e-5)
    assert told.use


def test_weights_count_in_fits_and_scores():
    logits, target = overconfident(n=600)
    garbage = torch.randn(200, 5, generator=torch.Generator().manual_seed(1)), torch.zeros(200, dtype=torch.long)
    both, labels = torch.cat([logits, garbage[0]]), torch.cat([target, garbage[1]])
    weight = torch.cat([torch.ones(600), torch.zeros(200)])
    clean = judge(Temperature(), logits, target)
    assert judge(Temperature(), both, labels, weight) == clean
    assert judge(Temperature(), both, labels) != clean
    weight = 1.0 + 9 * (target == 0)
    heavy = judge(Temperature(), logits, target, weight)
    assert heavy.before.nll == pytest.approx(Temperature().fit(logits, target, weight).report.before.nll)
    assert heavy.after.nll != pytest.approx(clean.after.nll, rel=1e-3)


def test_too_few_samples_for_the_folds_are_refused():
    with pytest.raises(InputError, match="too few for 5 folds"):
        judge(Temperature(), *overconfident(n=3))
