"""The checkpoint advisor, on histories made by hand."""

import json

import pytest

from acls.cli import main
from acls.errors import InputError
from acls.study.advisor import advise, read_history
from acls.train import fit
from tests.train.quick import digits

HEADER = "epoch,val/accuracy,val/nll,val/ece,val/ece_after_temperature,val/n"
ROWS = [
    "0,0.80,0.60,0.01,0.02,400",
    "1,0.90,0.30,0.05,0.015,400",
    "2,0.91,0.35,0.08,0.03,400",
    "3,0.91,0.4,0.09,0.01,400",
]


@pytest.fixture
def made(tmp_path):
    (tmp_path / "metrics.csv").write_text("\n".join([HEADER, *ROWS]) + "\n")
    return tmp_path


def test_each_rule_keeps_its_best_epoch_and_the_first_of_equals(made):
    kept = {rule.name: rule.keep.epoch for rule in advise(read_history(made)).rules}
    assert kept == {"accuracy": 3, "nll": 2, "ece": 1, "ece_after_temperature": 4, "nll at accuracy": 2}


def test_the_front_leaves_out_what_another_beats(made):
    """Epoch 4 is as accurate as epoch 3 with a larger ECE."""
    assert [one.epoch for one in advise(read_history(made)).front] == [1, 2, 3]


def test_epochs_within_a_standard_error_are_close(made):
    assert [one.epoch for one in advise(read_history(made)).close] == [2, 3, 4]


def test_the_advice_never_gives_up_accuracy_that_samples_can_tell():
    history = [dict(zip(HEADER.split(","), map(float, row.split(",")), strict=True)) for row in ROWS]
    history[0]["val/nll"] = 0.01  # the least NLL, with ten points less accuracy
    kept = {rule.name: rule.keep.epoch for rule in advise(history).rules}
    assert kept["nll"] == 1
    assert kept["nll at accuracy"] == 2


def test_a_run_has_what_the_advisor_needs(tmp_path):
    fit(digits(), tmp_path / "run", show=False)
    advice = advise(read_history(tmp_path / "run"))
    assert [one.epoch for one in advice.epochs] == [1, 2]
    assert all(0 <= one.ece_after_temperature <= 1 for one in advice.epochs)


def test_the_command_prints_rules_and_draws(made, capsys):
    assert main(["advise", str(made), "--figure", str(made / "front.png")]) == 0
    out = capsys.readouterr().out
    assert "epochs 1, 2, 3" in out
    assert out.startswith("Keep epoch 2: ")
    assert "with an ECE from 5.00 to 9.00 %" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert (made / "front.png").stat().st_size > 1000
    assert main(["advise", str(made), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["epochs"]) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch,val/accuracy\n0,0.5\n", "lacks val/nll"),
        (HEADER + "\n", "no finished epoch"),
        (HEADER + "\n0,much,1,1,1,1\n", "does not contain numbers"),
    ],
)
def test_histories_that_cannot_be_weighed_are_refused(tmp_path, text, message):
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        advise(read_history(tmp_path))


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="not the folder of a run"):
        read_history(tmp_path)
