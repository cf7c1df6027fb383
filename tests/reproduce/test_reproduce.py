"""The paper by name, at the smallest size: every table and figure comes out, from runs that are shared."""

import fcntl
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acls.cli import full_parser, main
from acls.cli.reproduce import NAMES, _roots
from acls.cli.settings import apply
from acls.losses import ACLS, table
from acls.metrics import Suite
from acls.metrics.batch import Batch
from acls.metrics.protocols import protocol
from acls.predictions import Predictions
from acls.recipes import LossOptions, find
from acls.reproduce import TARGETS, Reproduced, Setup, papers_of, published, reproduce
from acls.reproduce.experiments import EXPERIMENTS, FORMS, lines_of
from acls.reproduce.runs import Study, _resampled_batches
from acls.reproduce.targets import BY_PLAIN_STEP, BY_STEP, altered
from acls.study.store import Store
from acls.train import fit
from acls.train.evaluate import open_weights
from tests.data.folders import cifar10_binary
from tests.study.quick import HERE
from tests.train.quick import digits

TINY = ["--seeds", "1", "--epochs", "1", "--limit-batches", "2", "--quiet"]


@pytest.fixture(autouse=True)
def _in_process(request, monkeypatch):
    """Trains in this process, which has imported all: workers are the matter of tests/study, and of the slow test."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr("acls.study.engine.make_engine", lambda *_, **__: HERE)


def test_every_name_of_the_command_is_a_target():
    assert set(NAMES) == set(TARGETS)


def test_a_readme_in_the_folder_is_left_alone(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    assert main(["reproduce", "table2", "--out", str(tmp_path), "--quiet", "--force"]) == 0
    assert (tmp_path / "README.md").read_text() == "mine"
    assert "[table2](table2.md)" in (tmp_path / "summary.md").read_text()


def test_what_needs_no_training_needs_none(tmp_path, capsys):
    assert main(["reproduce", "table2", "figure1", "--out", str(tmp_path), "--quiet"]) == 0
    assert "MbLS" in (tmp_path / "table2.md").read_text()
    assert (tmp_path / "figure1.png").stat().st_size > 5000
    assert not (tmp_path / "studies").exists()
    for name in ("table2", "figure1"):
        page = Path("docs", "reproduction", f"{name}.md")
        assert page.read_text() == (tmp_path / f"{name}.md").read_text(), f"run acls reproduce {name} again"
    rows = [line for line in (tmp_path / "summary.md").read_text().splitlines() if line.startswith("| [")]
    assert [line.split(" | ")[3] for line in rows] == ["", ""]  # of no seeds
    assert str(tmp_path / "table2.md") in capsys.readouterr().out


def test_tables_share_their_runs_and_say_what_stands_in(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = ["--out", str(tmp_path), "--seeds", "2", "--epochs", "1", "--limit-batches", "2"]
    assert main(["reproduce", "table6", *words]) == 0
    before = {row.key: row.seconds for row in Store(tmp_path / "studies" / "digits_cnn").rows()}
    assert main(["reproduce", "figure3", *words]) == 0
    assert {row.key: row.seconds for row in Store(tmp_path / "studies" / "digits_cnn").rows()} == before
    out = capsys.readouterr().out
    assert "digits_cnn is used instead of data that was not given" in " ".join(out.split())
    assert re.search(r"^ACLS, margin \(authors' code\) +- +1\.05 +1\.03 ", out, re.M)  # an aligned table, not Markdown
    assert "| ACLS, margin (Eq. 13) | - | 1.05 | 1.03 |" in (tmp_path / "table6.md").read_text()
    assert "digits_cnn: small_cnn, 1 epoch, batches of 64, 2 seeds" in out
    assert (tmp_path / "figure3-digits_cnn.svg").is_file()
    why = (tmp_path / "figure3.md").read_text()
    assert "the regulariser is 0 where no logit lies more than the margin, 6, below the largest" in why
    gaps = re.findall(r"that of the median training sample is ([\d.]+) \(ACLS, ranking \(authors' code\)\), ", why)
    assert len(gaps) == 1
    assert 0 < float(gaps[0]) < 6
    summary = (tmp_path / "summary.md").read_text()
    assert "Of 10 distinct claims" in summary  # four pairs by ECE and AECE, two shares of inactive samples
    assert "These verdicts hold for: digits_cnn" in summary
    assert "[figure3](figure3.md)" in summary
    assert "| digits_cnn | 12 |" in summary  # six methods, two seeds; nothing was trained again


def test_what_stands_in_for_two_data_sets_is_judged_once(tmp_path, monkeypatch):
    whole = EXPERIMENTS["table3"]
    printed = {paper: {row: rows[row] for row in ("CE", "ACLS")} for paper, rows in whole.printed.items()}
    small = replace(whole, printed=printed)
    monkeypatch.setitem(EXPERIMENTS, "table3", small)
    monkeypatch.setitem(EXPERIMENTS, "table1", replace(small, title="Table 1: again"))
    assert main(["reproduce", "table3", "table1", "--loss.form", "stopped", "--out", str(tmp_path), *TINY]) == 0
    text = (tmp_path / "table3.md").read_text()
    assert "| ACLS (stopped) | 95.40 |" in text
    assert "(in the paper: cifar10_resnet50)" in text
    second = text.partition("(in the paper: tiny_imagenet_resnet50)")[2]
    assert "the networks of cifar10_resnet50 above again" in second
    assert text.count(r"| ECE: ACLS \< CE |") == 1
    assert "Of 3 distinct claims" in (tmp_path / "summary.md").read_text()  # ECE, AECE, accuracy; Table 1 adds none
    _temperatures_and_ten_bins_are_shown(tmp_path, monkeypatch)
    _figures_2_and_a_are_whole(tmp_path, monkeypatch)


def _temperatures_and_ten_bins_are_shown(folder, monkeypatch):
    """With the networks that are there: temperatures are fitted to them."""
    rows = ("CE", "CE + TS", "ACLS")
    for name, whole in (("table3", published.TABLE_3), ("tableB", published.TABLE_B)):
        printed = {paper: {row: table[row] for row in rows} for paper, table in whole.items()}
        monkeypatch.setitem(EXPERIMENTS, name, replace(EXPERIMENTS[name], printed=printed))
    assert main(["reproduce", "table3", "tableB", "--out", str(folder), *TINY]) == 0
    text = (folder / "table3.md").read_text()
    assert "| CE + TS (grid) | 93.20 | 3.68 |" in text
    assert "| CE + TS (NLL) | 93.20 | 3.68 |" in text
    told = re.findall(r"Temperatures, one per seed: (\S+) \(grid\); (\S+) \(NLL\). The paper's: (.*)\.", text)
    assert [paper for *_, paper in told] == ["2.9", "1.1"]
    assert all(float(grid) == pytest.approx(round(float(grid), 1)) for grid, *_ in told)
    ten = (
        (folder / "tableB.md")
        .read_text()
        .partition("| method | paper: ECE | paper: AECE | ours: ECE | ours: AECE | seeds |")[2]
    )
    table = [line.split(" | ") for line in ten.splitlines() if line.startswith(("| CE |", "| ACLS (Eq"))]
    assert [row[1:3] for row in table[:2]] == [["3.74", "3.68"], ["0.91", "0.92"]]
    (stored,) = [
        row for row in Store(folder / "studies/digits_cnn").rows() if (row.method, row.posthoc) == ("CE", "none")
    ]
    outputs = Predictions.load(folder / "studies/digits_cnn" / stored.run / "predictions" / "test.safetensors")
    assert table[0][3] == f"{100 * Suite.of(outputs.logits(), outputs.labels, bins=10).summary()['ece']:.2f}"


def _figures_2_and_a_are_whole(folder, monkeypatch):
    """Drawn with the rows of CE in place of every method."""
    drawn, settings = {}, {"epochs": 1, "limit_batches": 2}
    setup = Setup(folder, HERE, seeds=(1,), settings=settings, show=False)
    rows = Study(setup, setup.recipe("cifar10_resnet50"), lines_of(["CE"])).rows("CE")

    class Stub(Study):
        def rows(self, *_):
            return rows

    def trained(self, papers, lines):
        yield papers[0], Stub(setup, setup.recipe(papers[0]), lines), ""

    monkeypatch.setattr(Reproduced, "trained", trained)
    monkeypatch.setattr(Reproduced, "keep", lambda self, figure, _="": drawn.update({self.name: figure}))
    for name in ("figure2", "figureA"):
        reproduce(name, replace(setup, form="stopped"))
    panels = drawn["figure2"].axes
    assert [ax.get_title().partition(":")[0] for ax in panels] == ["CE", "LS", "CPC", "MDCA", "MbLS", "CRL", "ACLS"]
    assert len({round(ax.get_position().y0, 3) for ax in panels}) == 1
    assert all(re.search(r"ECE \d+\.\d\d %\n\(\d+\.\d\d to \d+\.\d\d\)$", ax.get_title()) for ax in panels)
    legend = drawn["figureA"].axes[0].get_legend().get_texts()
    assert [text.get_text() for text in legend] == [*FORMS, "stopped"]


def test_another_process_at_the_study_is_waited_for_or_named(tmp_path, capsys):
    words = ["reproduce", "statistics", "--out", str(tmp_path), *TINY]
    study = Store(tmp_path / "studies" / "digits_cnn", create=True)
    (tmp_path / "reproduce.lock").touch()
    with open(study.folder / "study.lock", "a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as another process would
        assert main(words) == 2
    assert "wait for it with --wait" in capsys.readouterr().err
    assert main([*words, "--wait"]) == 0


def test_data_are_named_as_a_comparison_names_them_so_that_runs_are_shared(tmp_path, monkeypatch):
    (tmp_path / "images.zip").touch()
    monkeypatch.chdir(tmp_path)
    compared = apply(find("cifar10_mini"), {"data.root": "images.zip"}, {})
    assert _roots(["cifar10=images.zip"]) == {"cifar10": compared.data.root}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tabel3"], "did you mean 'table3'"),
        (["all", "table1"], "pass it alone"),
        (["table3", "--data", "cifar10"], "expected NAME=PATH"),
        (["table3", "--data", "cifr10=."], "did you mean 'cifar10'"),
        (["table3", "--data", "cifar10=nowhere.zip"], "there is no nowhere.zip"),
        (["table3", "--seeds", "0"], "--seeds: expected a whole number in [1, 1000]"),
        (["table3", "--loss.form", "papr"], "did you mean 'paper'"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, told, capsys, tmp_path):
    assert main(["reproduce", *words, "--out", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err


def test_a_data_set_that_cannot_be_opened_is_refused_before_any_training(tmp_path, capsys):
    """The targets before the one that needs it would run for hours first."""
    (tmp_path / "cifar10_train.zip").touch()
    words = ["table1", "table3", "--data", f"cifar10={tmp_path / 'cifar10_train.zip'}", "--out", str(tmp_path / "out")]
    assert main(["reproduce", *words]) == 2
    assert "cifar10_train.zip" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_at_the_papers_size_every_data_set_of_the_targets_must_be_given(tmp_path, capsys):
    """Embedded data would replace none: the error would come when the first two data sets are trained."""
    words = ["reproduce", "figure1", "table3", "--scale", "paper", "--out", str(tmp_path / "out")]
    assert main([*words, "--data", f"cifar10={cifar10_binary(tmp_path)}"]) == 2
    assert "add --data tiny_imagenet=PATH --data imagenet=PATH\n" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_recipes_that_are_checked_are_those_that_a_target_trains(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(Reproduced, "trained", lambda self, papers, _: seen.setdefault(self.name, tuple(papers)) and [])
    for name in set(TARGETS) - {"table2", "figure1"}:
        reproduce(name, Setup(tmp_path, HERE))
    assert seen == {name: papers for name in TARGETS if (papers := papers_of(name))}


def test_a_number_of_devices_is_for_the_recipes_of_several_gpus(tmp_path):
    setup = Setup(tmp_path, HERE, scale="paper", settings={"devices": 8, "epochs": 1})
    devices = {paper: setup.recipe(paper).devices for paper in EXPERIMENTS["table3"].printed}
    assert {paper for paper, number in devices.items() if number > 1} == {"imagenet_resnet50"}
    assert devices["imagenet_resnet50"] == 8
    assert find("imagenet_resnet50").devices == 4
    assert replace(setup, scale="mini").recipe("tiny_imagenet_resnet50").devices == 8


def test_the_commands_of_the_documentation_are_accepted(tmp_path):
    commands = re.findall(r"^acls reproduce (.*--scale paper.*)$", Path("docs/reproducing.md").read_text(), re.M)
    assert len(commands) == 9
    parser = full_parser()
    for command in commands:
        args = parser.parse_args(["reproduce", *command.split()])
        given = {words.partition("=")[0] for words in args.data}
        assert given == {find(paper).data.name for name in args.names for paper in papers_of(name)}, command
    setup = Setup(tmp_path, HERE, scale="paper", settings={"data.train_list": "trainaug"})
    assert setup.recipe("voc_deeplabv3_resnet50").data.train_list == "trainaug"


@pytest.mark.slow
def test_the_whole_paper_runs_through(tmp_path):
    assert main(["reproduce", "all", "--out", str(tmp_path), *TINY]) == 0
    for name in NAMES:
        assert (tmp_path / f"{name}.md").stat().st_size > 100, name
    table3 = (tmp_path / "table3.md").read_text()
    assert "Left out, because they have no version of this size: cifar10_resnet101" in table3
    assert "synthetic_unet" in (tmp_path / "table4.md").read_text()


def test_table_2_has_the_papers_seven_rows_as_printed_and_as_they_are(tmp_path):
    assert main(["reproduce", "table2", "--out", str(tmp_path), "--quiet"]) == 0
    lines = (tmp_path / "table2.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    methods = ["LabelSmoothing", "FLSD", "CPC", "MDCA", "MbLS", "CRL", "ACLS"]
    assert [cell[0] for cell in cells if cell[2] == "printed"] == methods
    assert [cell[0] for cell in cells if cell[2] == "right"] == methods[:-1]
    for name, form in FORMS.items():  # whichever is the default
        (row,) = table([ACLS(form=form)])
        assert [cell[4] for cell in cells if cell[:3] == ["ACLS", "ACR", name]] == [row.f_pivot]
    printed, right = (next(cell for cell in cells if cell[:3] == ["MbLS", "CR", kind]) for kind in ("printed", "right"))
    assert printed[5] == "0"  # C at the predicted class, which the loss does not have
    assert right[5] != "0"


def test_table_4_is_judged_as_the_paper_measures_and_pooled_beside(tmp_path, monkeypatch):
    whole = EXPERIMENTS["table4"]
    printed = {paper: {row: rows[row] for row in ("CE", "ACLS")} for paper, rows in whole.printed.items()}
    small = replace(whole, printed=printed)
    monkeypatch.setitem(EXPERIMENTS, "table4", small)
    assert main(["reproduce", "table4", "--out", str(tmp_path), *TINY]) == 0
    text = (tmp_path / "table4.md").read_text()
    assert "by the protocol mbls-segmentation" in text
    row = next(line for line in text.splitlines() if line.startswith("| CE |")).split("|")
    study = tmp_path / "studies" / "synthetic_unet"
    (stored,) = [row for row in Store(study).rows() if row.method == "CE"]
    session, _ = open_weights(study / stored.run)
    meter, pool = protocol("mbls-segmentation").meter(), protocol("pooled").meter()
    for logits, target, _ in session.outputs(session.data.test):
        meter.add(Batch.of(logits, target, kind="logits", ignore_index=session.data.void))
        pool.add(Batch.of(logits, target, kind="logits", ignore_index=session.data.void))
    assert float(row[6]) == pytest.approx(100 * meter.result()["ece"], abs=0.006)
    assert float(row[12]) == pytest.approx(100 * pool.result()["ece"], abs=1.0)  # of sampled pixels
    assert float(row[5]) == pytest.approx(100 * stored.result["miou_foreground"], abs=0.006)
    low, high = map(float, row[7].split(" .. "))
    assert low < float(row[6]) < high


def test_resamples_of_batches_vary_as_their_mean_does_and_cancel_what_networks_share():
    batches = [{"n": 100.0, "ece": value, "aece": value} for value in (0.05, 0.09, 0.06, 0.08, 0.10, 0.04, 0.07, 0.07)]
    drawn = _resampled_batches(batches, protocol("mbls-segmentation"))["ece"]
    values = torch.tensor([batch["ece"] for batch in batches])
    assert float(drawn.mean()) == pytest.approx(0.07, abs=0.002)
    assert float(drawn.std()) == pytest.approx(float(values.std()) / 8**0.5, rel=0.15)
    worse = [{**batch, "ece": batch["ece"] + 0.01} for batch in batches]
    apart = _resampled_batches(worse, protocol("mbls-segmentation"))["ece"] - drawn
    assert float(apart.std()) == pytest.approx(0, abs=1e-12)


def test_the_share_of_altered_predictions_is_that_of_the_step_itself(tmp_path):
    fields = {"form": "paper", "margin": 0.0, "lambda1": 5.0, "lambda2": 5.0}
    recipe = digits(epochs=3, loss=LossOptions("ACLS", fields=fields))
    strong = fit(recipe, tmp_path / "strong", show=False).folder
    idle = fit(replace(recipe, loss=LossOptions("ACLS", fields={"margin": 50.0})), tmp_path / "idle", show=False).folder
    shares = altered(strong)
    assert shares["predicted otherwise with the regulariser"] > 0.01
    assert shares[BY_STEP] > shares[BY_PLAIN_STEP]
    shares = altered(idle)  # no gap is as wide: both steps are the same
    assert shares["predicted otherwise with the regulariser"] == 0.0
    assert shares[BY_STEP] == shares[BY_PLAIN_STEP]
