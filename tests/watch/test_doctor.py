"""Each thing that goes wrong in practice is named; real networks' files are not accused of anything."""

import re

import numpy as np
import pytest
import torch

from acls.cli import main
from acls.predictions import Columns, Predictions, open_batches
from acls.watch.doctor import Fingerprint, examine
from tests.predictions.made import make


def confident(n=2000, k=10, seed=0):
    """Logits like a trained network's: right in about nine of ten rows, and sure of it."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, k, (n,), generator=generator)
    logits = torch.randn(n, k, generator=generator)
    shown = torch.where(torch.rand(n, generator=generator) < 0.9, labels, (labels + 3) % k)
    logits[torch.arange(n), shown] += 6
    return logits, labels


def changed(change):
    logits, labels = confident()
    return change(logits.clone(), labels.clone())


def _set(tensor, index, value):
    tensor[index] = value
    return tensor


CASES = {
    "probs-as-logits": (lambda z, y: Predictions(z.softmax(1), y, "logits"), "the logits are probabilities"),
    "log-probs-as-logits": (lambda z, y: Predictions(z.log_softmax(1), y, "logits"), "harmless"),
    "double-softmax": (
        lambda z, y: Predictions(z.softmax(1).softmax(1), y, "probs"),
        r"applied twice: no confidence exceeds 0\.2320",
    ),
    "sums": (lambda z, y: Predictions(z[:300].sigmoid(), y[:300], "probs"), r"300 of 300 rows \(100\.00 %\) of probs"),
    "logits-as-probs": (lambda z, y: Predictions(z, y, "probs"), "look like logits: pass them as logits"),
    "log-probs-as-probs": (lambda z, y: Predictions(z.log_softmax(1), y, "probs"), "pass them as log_probs"),
    "percent": (lambda z, y: Predictions(100 * z.softmax(1), y, "probs"), "divide them by 100"),
    "rounded": (lambda z, y: Predictions((z / 9).softmax(1).round(decimals=3), y, "probs"), "rounded values"),
    "zero": (lambda z, y: Predictions(torch.eye(10)[z.argmax(1)], y, "probs"), "probability 0: the NLL is infinite"),
    "class-axis": (lambda z, y: Predictions(z.softmax(0), y, "probs"), "over the wrong axis"),
    "probs-as-log-probs": (lambda z, y: Predictions(z.softmax(1), y, "log_probs"), "are probabilities: pass them"),
    "logits-as-log-probs": (lambda z, y: Predictions(z, y, "log_probs"), "they look like logits"),
    "labels-from-1": (lambda z, y: Predictions(z, y + 1, "logits"), "run from 1 to 10: they count from 1"),
    "shifted-labels": (
        lambda z, y: Predictions(z[y < 9], y[y < 9] + 1, "logits"),
        r"the predicted class is the label -1 in 89\.82 % of the rows",
    ),
    "ignore-label": (
        lambda z, y: Predictions(z, _set(y, slice(0, 100), 255), "logits"),
        r"100 of 2000 rows \(5\.00 %\) have the label 255, outside 0\.\.9: .* --ignore-index 255",
    ),
    "labels": (lambda z, y: Predictions(z, y * 2, "logits"), r"labels outside 0\.\.9 \(10, 12, 14, 16, 18\)"),
    "ignored": (lambda z, y: Predictions(z, _set(y, slice(0, 20), -100), "logits"), "20 of 2000 .* ignored label -100"),
    "one-label": (lambda z, y: Predictions(z[y == 3], y[y == 3], "logits"), "every label is 3"),
    "missing-class": (lambda z, y: Predictions(z[y != 3], y[y != 3], "logits"), "class 3 has no sample"),
    "never-predicted": (
        lambda z, y: Predictions(_set(z, (slice(None), 3), -30 + z[:, 3]), y, "logits"),
        "class 3 has samples but no prediction",
    ),
    "one-prediction": (lambda z, y: Predictions(z / 9 + torch.eye(10)[3] * 9, y, "logits"), "class 3 is predicted"),
    "constant-class": (lambda z, y: Predictions(_set(z, (slice(None), 3), 0.0), y, "logits"), "class 3 has the same"),
    "constant": (lambda z, y: Predictions(z[:1].expand(2000, 10), y, "logits"), "all rows are the same"),
    "shuffled-labels": (lambda z, y: Predictions(z, y.flip(0), "logits"), "labels are in a different order"),
    "nan": (
        lambda z, y: Predictions(_set(z, (torch.tensor([7, 40]), 3), float("nan")), y, "logits"),
        r"2 of 2000 rows \(0\.10 %\) contain NaN or infinity, the first is row 7",
    ),
    "duplicates": (
        lambda z, y: Predictions(torch.cat([z, z[:100]]), torch.cat([y, y[:100]]), "logits"),
        r"4\.76 % of the rows repeat an earlier one",
    ),
    "confidence": (
        lambda z, y: Predictions(None, y, "triples", confidence=90 * z.softmax(1).amax(1), predicted=z.argmax(1)),
        "looks like a percentage",
    ),
    "empty": (lambda z, y: Predictions(z[:0], y[:0], "logits"), "no rows"),
}  # fmt: skip
ALSO = {"shifted-labels": {"missing-class"}}
NOTES = {"log-probs-as-logits", "rounded", "zero", "ignored", "missing-class", "never-predicted", "duplicates"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [2500, 333])
def test_what_is_wrong_is_said_in_one_sentence(name, rows):
    made, sentence = CASES[name]
    p = changed(made)
    parts = [p[start : start + rows] for start in range(0, max(1, len(p)), rows)]
    diagnosis = examine(parts)
    finding, *others = diagnosis.findings
    assert finding.name == name
    assert {other.name for other in others} == ALSO.get(name, set())
    assert finding.level == ("note" if name in NOTES else "serious")
    assert diagnosis.healthy == (name in NOTES)
    assert re.search(sentence, finding.sentence), finding.sentence


@pytest.mark.parametrize("kind", ["logits", "probs", "log_probs", "triples"])
@pytest.mark.parametrize("k", [2, 3, 30])
@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0])
def test_calibrated_predictions_of_any_sharpness_are_fine(kind, k, scale):
    p = make(3000, k, "logits", seed=1)
    logits = p.scores * scale
    generator = torch.Generator().manual_seed(2)
    labels = (torch.rand(3000, 1, generator=generator) > logits.softmax(1).cumsum(1)).sum(1).clamp(max=k - 1)
    if kind == "triples":
        confidence, predicted = logits.softmax(1).max(1)
        q = Predictions(None, labels, kind, confidence=confidence, predicted=predicted)
    else:
        q = Predictions(
            {"logits": logits, "probs": logits.softmax(1), "log_probs": logits.log_softmax(1)}[kind], labels, kind
        )
    assert examine([q]).findings == []


def test_a_single_column_of_probabilities_is_told_from_logits(tmp_path):
    p = make(500, 2, "probs")
    np.savez(tmp_path / "b.npz", score=p.scores[:, 1], labels=p.labels)
    as_logits = examine(open_batches(tmp_path / "b.npz", Columns(logits="score"), check=False))
    assert [finding.name for finding in as_logits.findings] == ["prob-as-logit"]
    assert examine(open_batches(tmp_path / "b.npz", Columns(probs="score"), check=False)).findings == []


def test_equal_scores_of_other_labels_are_no_duplicates():
    logits, labels = confident()
    twice = Predictions(torch.cat([logits, logits]), torch.cat([labels, (labels + 1) % 10]), "logits")
    assert examine([twice]).findings == []


def test_a_set_is_recognised_in_another():
    logits, labels = confident()
    p = Predictions(logits, labels, "logits")
    q = Predictions(*confident(seed=1), "logits")
    mixed = Predictions(torch.cat([q.scores, logits[:40]]), torch.cat([q.labels, labels[:40]]), "logits")
    same, other, some = examine([p]), examine([q]), examine([mixed])
    assert same.against(other).findings == same.findings
    assert [f.name for f in same.against(same).findings] == ["same-set"]
    assert "same-set" in [f.name for f in examine([p[:100]]).against(same).findings]
    (overlap,) = same.against(some).findings
    assert overlap.name == "overlap"
    assert overlap.sentence.startswith("2.00 % of the rows are also in predictions")
    (cooler,) = same.against(examine([Predictions(logits / 2, labels, "logits")])).findings
    assert (cooler.name, cooler.level) == ("same-labels", "note")


def test_the_overlap_is_found_in_a_sample_when_there_are_too_many_rows_to_keep(monkeypatch):
    monkeypatch.setattr(Fingerprint, "LIMIT", 256)
    one, other = examine([Predictions(*confident(), "logits")]), examine([Predictions(*confident(n=5000), "logits")])
    assert one.fingerprint.bits >= 3
    assert len(one.fingerprint.hashes) <= 256
    mixed = (
        torch.cat([confident()[0][:600], confident(seed=5)[0]]),
        torch.cat([confident()[1][:600], confident(seed=5)[1]]),
    )
    share = one.fingerprint.share_in(examine([Predictions(*mixed, "logits")]).fingerprint)
    assert 0.2 < share < 0.4
    assert other.fingerprint.share_in(one.fingerprint) < 0.01


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        *(("cifar10_akamaster_resnets", {"logits": f"resnet{depth}"}) for depth in (20, 32, 44, 56)),
        *(("cifar10_widmann_14nets_probs", {"probs": f"probs[{at}]"}) for at in range(14)),
        ("cifar10_netcal_probs", {"probs": "lenet_5_probs"}),
        ("cifar10_netcal_probs", {"probs": "wideresnet_16_4_probs"}),
        ("cifar10_vgg16_verified_probs", {}),
    ],
)
def test_real_networks_are_not_accused(outputs, name, columns):
    assert examine(open_batches(outputs(name), Columns(**columns), check=False)).findings == []


def test_a_segmentation_sample_has_true_notes_only(outputs):
    path = outputs("voc2012_espnetv2_pixels")
    diagnosis = examine(open_batches(path, check=False))
    assert {f.name for f in diagnosis.findings} <= {"missing-class", "never-predicted"}
    labels = np.load(path)["labels"]
    missing = sorted(set(range(21)) - set(np.unique(labels).tolist()))
    assert (
        f"{len(missing)} of 21 classes ({', '.join(map(str, missing))}) have no sample"
        in diagnosis.findings[0].sentence
    )


# The command.


def test_the_command_says_fine_and_exits_with_0(tmp_path, capsys):
    Predictions(*confident(), "logits").save(tmp_path / "p.npz")
    assert main(["doctor", str(tmp_path / "p.npz")]) == 0
    out = capsys.readouterr().out.replace("\n    ", " ")
    assert "2000 rows, logits of 10 classes; accuracy 89.65 %, mean confidence 94.84 %" in out
    assert "nothing looks wrong" in out


def test_the_command_exits_with_1_for_what_is_serious(tmp_path, capsys):
    logits, labels = confident()
    np.savez(tmp_path / "p.npz", logits=logits.softmax(1), labels=labels)
    assert main(["doctor", str(tmp_path / "p.npz")]) == 1
    assert "serious: the logits are probabilities" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path / "p.npz"), "--probs", "logits"]) == 0
    capsys.readouterr()
    np.savez(tmp_path / "t.npz", logits=logits.T, labels=labels)
    assert main(["doctor", str(tmp_path / "t.npz")]) == 1
    assert "so save its transpose" in capsys.readouterr().out.replace("\n    ", " ")


def test_the_command_compares_with_the_test_set(tmp_path, capsys):
    p = Predictions(*confident(), "logits")
    p[:1000].save(tmp_path / "calibration.parquet")
    p[900:].save(tmp_path / "test.npz")
    assert main(["doctor", str(tmp_path / "calibration.parquet"), "--against", str(tmp_path / "test.npz")]) == 1
    assert "10.00 % of the rows are also in" in capsys.readouterr().out.replace("\n    ", " ")
    p[1000:].save(tmp_path / "test.npz")
    assert main(["doctor", str(tmp_path / "calibration.parquet"), "--against", str(tmp_path / "test.npz")]) == 0


def test_a_file_that_is_not_there_is_bad_input(tmp_path, capsys):
    assert main(["doctor", str(tmp_path / "absent.npz")]) == 2
    assert "there is no file" in capsys.readouterr().err
