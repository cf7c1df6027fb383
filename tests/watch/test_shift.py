"""Under corruptions: the numbers are those of the corrupted images, and the temperature's fate is told."""

import json
from dataclasses import replace

import pytest
import torch

from acls.cli import main
from acls.data import DataOptions
from acls.data.corruptions import Corruption
from acls.data.dataset import Draw
from acls.errors import InputError
from acls.metrics import Suite
from acls.metrics.significance import Difference
from acls.models import ModelOptions
from acls.report.figures.shift import prepare
from acls.train import fit
from acls.watch.shift import Condition, Shift, of_model, open_network, sweep
from tests.train.quick import digits, maps


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shift") / "run"
    fit(digits(epochs=2, limit_batches=None), folder, show=False)
    return folder


def test_numbers_are_those_of_the_corrupted_images(run):
    found = of_model(run, corruptions=["noise", "contrast"], severities=[2, 5], seed=3)
    assert [(one.corruption, one.severity) for one in found.conditions] == [
        ("none", 0), ("noise", 2), ("noise", 5), ("contrast", 2), ("contrast", 5),
    ]  # fmt: skip
    with torch.random.fork_rng():
        session = open_network(run, data=None, model=None)
    x, y, index = session.data.test.__getitems__(Draw(torch.arange(539), 0))
    with torch.no_grad():
        corrupts = [None, Corruption("noise", 2, 3), Corruption("noise", 5, 3)]
        for one, corrupt in zip(found.conditions, corrupts, strict=False):
            logits = session.judged.eval()(x if corrupt is None else corrupt(x, index))
            plain, scaled = (Suite.of(z, y).summary() for z in (logits, logits / found.temperature))
            assert one.n == 539
            assert one.accuracy == pytest.approx(plain["accuracy"], abs=1e-6)
            assert one.ece == pytest.approx(plain["ece"], abs=1e-4)
            assert one.nll == pytest.approx(plain["nll"], abs=1e-4)
            assert one.scaled_ece == pytest.approx(scaled["ece"], abs=1e-4)
    assert found.conditions[-1].accuracy < found.conditions[0].accuracy


def test_the_clean_condition_of_a_run_with_passes_is_what_the_run_reports(tmp_path):
    dropout = replace(digits().model, dropout=0.5)
    result = fit(digits(epochs=1, limit_batches=None, model=dropout, passes=3), tmp_path / "run", show=False)
    (clean,) = of_model(tmp_path / "run", corruptions=[]).conditions
    assert clean.ece == pytest.approx(result.test["ece"], abs=1e-4)


def test_the_command_prints_a_table_json_and_a_figure(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    options = ["--corruptions", "dark,jpeg", "--severity", "1,4-5", "--limit", "100", "--quiet"]
    assert main(["shift", str(run), *options]) == 0
    told = capsys.readouterr().out
    assert "Of 6 conditions" in " ".join(told.partition("\n\n")[0].split())  # the verdict comes first
    assert any(line.split()[:2] == ["corruption", "severity"] for line in told.splitlines())
    assert max(map(len, told.splitlines())) <= 80
    assert "floor at T %" in told  # room is made by leaving out the floors before T, which says the least
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["shift", str(run), *options]) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 60
    assert all(
        line.split()[-1] in ("T", "holds", "helps", "hurts", "maybe") for line in narrow.split("\n\n")[1].splitlines()
    )
    assert f"T: whether the temperature {of_model(run, corruptions=[]).temperature:.3f}" in narrow
    assert "Best T" in narrow
    assert main(["shift", str(run), *options, "--json", "--figure", str(tmp_path / "shift.png")]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [row["severity"] for row in plain["conditions"]] == [0, 1, 4, 5, 1, 4, 5]
    assert {row["n"] for row in plain["conditions"]} == {100}
    assert (tmp_path / "shift.png").read_bytes().startswith(b"\x89PNG")


def test_segmentation_counts_pixels(tmp_path):
    fit(maps(epochs=1), tmp_path / "run", show=False)
    found = of_model(tmp_path / "run", corruptions=["noise"], severities=[5])
    assert found.dense
    assert found.conditions[0].n == 32 * 16 * 16
    assert found.conditions[1].nll != found.conditions[0].nll


def test_a_network_by_name_takes_its_weights_and_data(run, tmp_path):
    from acls.storage import load_tensors, save_tensors

    tensors, _ = load_tensors(run / "best.safetensors")
    save_tensors(tmp_path / "weights.safetensors", tensors, {})
    of_run = of_model(run, corruptions=["blur"], severities=[3])
    data, model = DataOptions(name="digits"), ModelOptions(weights=str(tmp_path / "weights.safetensors"))
    by_name = of_model("small_cnn", data=data, model=model, corruptions=["blur"], severities=[3])
    assert by_name.conditions[1].accuracy == of_run.conditions[1].accuracy
    assert by_name.conditions[1].ece == pytest.approx(of_run.conditions[1].ece, abs=1e-6)


def test_a_sweep_over_any_model_fixes_an_overconfident_one():
    """Labels are drawn from softmax(z); the model says 3 z, so that T = 3 is right, and wrong once noise is added."""
    random = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(4000, 4, generator=random)
    y = torch.multinomial(z.softmax(1), 1, generator=random)[:, 0]

    def outputs(corrupt):
        noisy = z if corrupt is None else z + 1.5 * torch.randn(z.shape, generator=torch.Generator().manual_seed(1))
        yield 3 * noisy, y, torch.arange(4000)

    clean, noisy = sweep(outputs, 3.0, [Corruption("noise", 1)], samples=4000)
    assert clean.verdict == "holds"
    assert clean.fitting_temperature == pytest.approx(3, rel=0.1)
    assert clean.ece > 0.1
    assert noisy.verdict == "helps"
    assert noisy.fitting_temperature > 3.2


def test_verdicts():
    numbers = dict.fromkeys(Condition.__dataclass_fields__, 0.0) | {"corruption": "noise", "severity": 1}
    one = Condition(**numbers | {"scaled_ceiling": 0.02, "change": None})
    holds = replace(one, scaled_ece=0.01, ece=0.005)
    helps = replace(one, scaled_ece=0.03, ece=0.05, change=Difference(-0.02, -0.03, -0.01, 0.01))
    hurts = replace(one, scaled_ece=0.06, ece=0.05, change=Difference(0.01, 0.005, 0.02, 0.01))
    maybe = replace(helps, change=Difference(-0.02, -0.05, 0.01, 0.2))  # lower, but by no more than chance
    conditions = (holds, helps, hurts, maybe, replace(helps, change=None))
    assert [condition.verdict for condition in conditions] == ["holds", "helps", "hurts", "maybe", "maybe"]
    told = Shift(1.5, (replace(one, corruption="none", severity=0), *conditions))
    assert "keeps 1 calibrated" in told.verdict()
    assert "Of 2 the ECE changes by no more than chance." in told.verdict()
    assert list(prepare(told)) == ["noise"]
    assert [100 * one.scaled_ece for one in prepare(told)["noise"]] == pytest.approx([0, 1, 3, 6, 3, 3])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--corruptions", "nois"], "did you mean 'noise'"),
        (["--severity", "0-3"], "levels from 1 to 5"),
        (["--severity", "high"], "levels from 1 to 5"),
        (["--limit", "0"], "--limit: expected a whole number"),
        (["--figure", "shift.jpgg"], "ends in .png, .svg, .pdf"),
        (["--model.pretrained"], "a run has its own network"),
    ],
)
def test_mistakes_are_told_before_work(run, capsys, words, sentence):
    assert main(["shift", str(run), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_what_is_no_run_is_told(tmp_path, capsys):
    assert main(["shift", str(tmp_path / "nothing")]) == 2
    assert "no run or checkpoint" in capsys.readouterr().err
    assert main(["shift", "small_cnn"]) == 2
    assert "--data folder" in capsys.readouterr().err


def test_points_are_no_images(tmp_path):
    from acls.recipes import find

    recipe = replace(find("synthetic_mlp"), epochs=1, limit_batches=2, log=(), accelerator="cpu")
    fit(recipe, tmp_path / "run", show=False)
    with pytest.raises(InputError, match="corruptions are for images"):
        of_model(tmp_path / "run")


@pytest.mark.slow
def test_a_real_network_loses_calibration_under_noise(shared):
    """The public ResNet-20 on CIFAR-10: what holds on clean images does not under noise."""
    data = DataOptions(name="cifar10", root=str(shared / "data" / "cifar10_train.zip"), normalise="imagenet")
    model = ModelOptions(weights=str(shared / "data" / "weights" / "resnet20-12fca82f.th"))
    found = of_model("resnet20", data=data, model=model, corruptions=["noise"], severities=[1, 3], limit=1000)
    clean, mild, strong = found.conditions
    assert clean.accuracy == pytest.approx(0.917, abs=0.03)
    assert strong.accuracy < mild.accuracy < clean.accuracy
    assert strong.scaled_ece > 3 * clean.scaled_ece
