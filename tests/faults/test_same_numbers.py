"""One question has one answer, whichever command is asked and however the file is cut."""

import numpy as np
import pytest
import torch

from acls.calibrators import Calibrator, Temperature
from acls.cli import main
from acls.predictions import Predictions, open_batches
from acls.report.page.sources import cross_fitted


@pytest.fixture
def rounded(tmp_path):
    """Probabilities of an overconfident model, rounded to three decimals, most of the rows saturated."""
    generator = torch.Generator().manual_seed(0)
    logits = 6 * torch.randn(4000, 5, generator=generator)
    labels = torch.distributions.Categorical(logits=logits / 2.5).sample()
    probs = logits.double().softmax(1).numpy().round(3)
    np.savez(tmp_path / "probs.npz", probs=probs, labels=labels.numpy())
    return tmp_path / "probs.npz"


def test_calibrate_and_report_find_one_temperature_for_rounded_probabilities(rounded, tmp_path):
    out = tmp_path / "c.safetensors"
    assert main(["calibrate", str(rounded), "--out", str(out), "--quiet"]) == 0
    by_calibrate = float(Calibrator.load(out).temperature)
    by_python = float(
        Temperature().fit(p := Predictions.load(rounded).logits(), Predictions.load(rounded).labels).temperature
    )
    assert p.isfinite().all()
    assert by_calibrate == by_python
    _, by_page = cross_fitted(open_batches(rounded))  # two halves, each of which has its own
    assert by_page == pytest.approx(by_calibrate, rel=0.03)


def test_apply_gives_the_same_numbers_however_the_file_is_cut(rounded, tmp_path):
    Temperature().fit(torch.randn(50, 5), torch.arange(50) % 5).save(tmp_path / "c.safetensors")
    arrays = np.load(rounded)
    found = {}
    for name, rows in {"whole": slice(None), "first": slice(0, 7), "rest": slice(7, None)}.items():
        np.savez(tmp_path / f"{name}.npz", probs=arrays["probs"][rows], labels=arrays["labels"][rows])
        out = tmp_path / f"{name}-out.npz"
        assert main(["apply", str(tmp_path / "c.safetensors"), str(tmp_path / f"{name}.npz"), str(out), "--quiet"]) == 0
        found[name] = np.load(out)["log_probs"]
    assert np.array_equal(found["whole"], np.concatenate([found["first"], found["rest"]]))
