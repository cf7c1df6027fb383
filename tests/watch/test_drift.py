"""Drift is found without labels, rarely where there is none, and told by the exit code."""

import json

import numpy as np
import pytest
import torch

from acls.cli import main
from acls.errors import InputError
from acls.predictions import Predictions
from acls.watch import Limits
from acls.watch.drift import (
    Profile,
    _by_confidence,
    _by_threshold,
    _kolmogorov_smirnov,
    _same_classes,
    _stability,
    compare,
    profile,
)


def made(n, seed, *, sharpness=2.0, shift=0.0, classes=5):
    """Calibrated predictions: labels are drawn from the softmax; ``shift`` pulls the logits together."""
    random = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, classes, generator=random) * (1 - shift)
    labels = torch.multinomial(logits.softmax(1), 1, generator=random)[:, 0]
    return Predictions(logits, labels, "logits")


def drift(before, after, **settings):
    return compare(profile([before]), profile([after]), **settings)


def test_distances_and_p_values_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    before, after = made(700, 1), made(500, 2, shift=0.1)
    found = drift(before, after)
    one, other = (p.top()[0].double().numpy() for p in (before, after))
    known = stats.ks_2samp(one, other, method="asymp")
    distance, p = _kolmogorov_smirnov(profile([before]).table()[0], profile([after]).table()[0], (700, 500))
    assert distance == pytest.approx(known.statistic, abs=2e-3)  # cells of the histogram
    assert p == pytest.approx(known.pvalue, rel=0.1)
    edges = np.quantile(one, np.linspace(0, 1, 11))[1:-1]
    shares = [np.bincount(np.searchsorted(edges, part), minlength=10) / len(part) for part in (one, other)]
    psi = float(np.sum((shares[1] - shares[0]) * np.log(shares[1] / shares[0])))
    assert found.psi == pytest.approx(psi, rel=0.1)
    assert _stability(profile([before]).table()[0], profile([after]).table()[0], (700, 500))[1] == pytest.approx(
        stats.chi2.sf(found.psi / (1 / 700 + 1 / 500), 9), rel=1e-6
    )
    counts = [np.bincount(p.top()[1].numpy(), minlength=5) for p in (before, after)]
    assert _same_classes(*map(torch.from_numpy, counts), (700, 500))[1] == pytest.approx(
        stats.chi2_contingency(np.array(counts), correction=False).pvalue, rel=1e-6
    )


def test_data_that_has_not_drifted_rarely_raises_an_alarm():
    found = [drift(made(400, seed), made(300, 1000 + seed), limits=Limits(alpha=0.05)) for seed in range(100)]
    assert sum(one.significant for one in found) <= 10  # 5 expected at most
    assert sum(one.alarm for one in found) <= sum(one.significant for one in found)


def test_drift_is_found_and_the_accuracy_predicted():
    """Confidences that stay calibrated tell the accuracy; ATC, which does not trust them as far, says less."""
    before, after = made(4000, 1), made(3000, 2, shift=0.4)
    found = drift(before, after)
    assert found.alarm
    assert found.accuracy_new == pytest.approx(float(after.correct().float().mean()))
    assert found.drop > 0.1
    assert abs(found.accuracy_by_confidence - found.accuracy_new) < found.accuracy_margin
    assert found.accuracy_by_threshold < found.accuracy_new
    assert found.confidence_new < found.confidence_calibration


def test_a_difference_beyond_chance_but_too_small_to_matter_raises_no_alarm():
    found = drift(made(200_000, 1), made(200_000, 2, shift=0.02))
    assert found.significant
    assert not found.alarm
    assert "small" in found.verdict()


@pytest.mark.parametrize("predict", [_by_threshold, _by_confidence])
@pytest.mark.parametrize("overconfidence", [0.5, 1.0, 3.0])
def test_the_calibration_set_gives_back_its_own_accuracy(predict, overconfidence):
    p = made(1000, 3)
    p = Predictions(overconfidence * p.scores, p.labels, "logits")
    table = profile([p]).table()
    assert predict(table, table) == pytest.approx(float(p.correct().double().mean()), abs=1e-9)


def test_slices_make_no_difference():
    before, after = made(1000, 1), made(900, 2)
    pieces = compare(profile([before[:300], before[300:]]), profile([after[:1], after[1:]]))
    whole = drift(before, after)
    assert pieces.checks == whole.checks
    assert pieces.as_json() == whole.as_json()


def test_pixels_count_as_images():
    before, after = made(4000, 1), made(4000, 2, shift=0.1)
    of_pixels = [Predictions(p.scores, p.labels, "logits", image=torch.arange(4000) // 200) for p in (before, after)]
    assert drift(before, after).significant
    assert not drift(*of_pixels).significant, "20 images a side say little"


def test_what_cannot_be_checked_is_told():
    p = made(100, 1)
    unlabelled = Predictions(p.scores, torch.full_like(p.labels, -100), "logits")
    with pytest.raises(InputError, match="no labels"):
        drift(unlabelled, p)
    with pytest.raises(InputError, match="no new rows"):
        compare(profile([p]), Profile())


@pytest.fixture
def files(tmp_path):
    before, same, moved = made(2000, 1), made(1500, 2), made(1500, 3, shift=0.4)
    before.save(tmp_path / "calibration.npz")
    for name, p in (("same", same), ("moved", moved)):
        np.savez(tmp_path / f"{name}.npz", logits=p.scores.numpy())  # no labels at all
    with open(tmp_path / "moved.csv", "w") as file:
        file.write("confidence,predicted\n")
        for sure, predicted in zip(*(part.tolist() for part in moved.top()), strict=True):
            file.write(f"{sure},{predicted}\n")
    return tmp_path


@pytest.mark.parametrize(("new", "code"), [("same.npz", 0), ("moved.npz", 1), ("moved.csv", 1)])
def test_the_exit_code_is_the_alarm(files, capsys, new, code):
    assert main(["drift", str(files / "calibration.npz"), str(files / new), "--quiet"]) == code
    told = capsys.readouterr().out
    assert ("ALARM" in told) == bool(code)
    assert "accuracy predicted" in told


def test_json_holds_everything(files, capsys):
    assert main(["drift", str(files / "calibration.npz"), str(files / "moved.npz"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["alarm"] is True
    assert told["accuracy_new"] is None
    assert (told["n_calibration"], told["n_new"]) == (2000, 1500)
    assert set(told["checks"]) == {"ks", "psi", "classes"}


def test_the_calibration_set_must_have_labels(files, capsys):
    assert main(["drift", str(files / "same.npz"), str(files / "moved.npz")]) == 2
    assert "labels" in capsys.readouterr().err


def test_the_commands_defaults_are_the_functions(files, capsys):
    main(["drift", str(files / "calibration.npz"), str(files / "same.npz"), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [told[name] for name in ("alpha", "psi_alarm", "drop_alarm", "label_alarm")] == list(vars(Limits()).values())


def test_real_networks_shift_is_found(outputs):
    """Half of a real network's test set against the other half, and against the same with half the logits."""
    p = Predictions.load(outputs("cifar10_akamaster_resnets"), logits="resnet20")
    order = torch.randperm(len(p), generator=torch.Generator().manual_seed(0))
    first, second = p[order[::2]], p[order[1::2]]
    assert not drift(first, second).alarm
    blurred = Predictions(second.scores * 0.5, second.labels, "logits")
    assert drift(first, blurred).alarm


def test_a_label_shift_is_an_alarm_of_its_own_with_the_new_shares_and_a_calibrator(tmp_path, capsys):
    before, after = made(4000, 1), made(8000, 2)
    weight = torch.tensor([3.0, 3.0, 1.0, 1.0, 1.0])
    kept = torch.multinomial(weight[after.labels], 3000, generator=torch.Generator().manual_seed(3))
    shifted = after[kept]
    truth = torch.bincount(shifted.labels, minlength=5) / len(shifted)
    unlabelled = Predictions(shifted.scores, shifted.labels * 0 - 100, "logits")
    found = drift(before, unlabelled)
    assert found.labels_alarm
    assert "Label shift" in found.verdict()
    assert found.shares_new == pytest.approx(truth.tolist(), abs=0.05)
    assert drift(before, shifted).shares_new == pytest.approx(truth.tolist())
    calibrator = found.calibrator()
    corrected = torch.nn.functional.nll_loss(calibrator(shifted.scores), shifted.labels)
    assert corrected < torch.nn.functional.cross_entropy(shifted.scores, shifted.labels) - 0.01
    assert not drift(before, made(3000, 5)).labels_alarm
    for name, part in (("before", before), ("new", unlabelled)):
        part.save(tmp_path / f"{name}.safetensors")
    out = tmp_path / "shift.safetensors"
    command = ["drift", str(tmp_path / "before.safetensors"), str(tmp_path / "new.safetensors"), "--out", str(out)]
    assert main([*command, "--quiet", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["alarms"]["labels"]
    assert told["saved"] == str(out)
    assert type(calibrator).load(out)(shifted.scores) == pytest.approx(calibrator(shifted.scores))


def test_a_calibrator_is_saved_only_where_the_classes_have_shifted_or_by_force(files, tmp_path, capsys):
    out = tmp_path / "shift.safetensors"
    command = ["drift", str(files / "calibration.npz"), str(files / "same.npz"), "--quiet", "--out", str(out)]
    assert main(command) == 0
    assert "Nothing is saved, because the class frequencies have not changed; --force saves" in " ".join(
        capsys.readouterr().out.split()
    )
    assert not out.exists()
    assert main([*command, "--json", "--force"]) == 0
    assert json.loads(capsys.readouterr().out)["saved"] == str(out)
    assert out.exists()


def test_labels_of_the_new_data_tell_a_fall_of_accuracy_that_confidences_hide():
    before, after = made(3000, 1), made(2000, 2)
    labels = torch.where(torch.arange(2000) % 5 == 0, (after.labels + 1) % 5, after.labels)
    found = drift(before, Predictions(after.scores, labels, "logits"))
    assert found.accuracy_alarm
    assert "Accuracy fell" in found.verdict()
    assert not drift(before, after).accuracy_alarm
