"""acls evaluate, as a user runs it: on real networks, on tables of any making, on what is broken."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made import make, write_csv

from acls.cli import main
from acls.metrics import Suite
from acls.predictions import Predictions
from acls.results import count, verdict
from acls.results import evaluate as evaluate_predictions

KEYS = ["n", "accuracy", "nll", "brier", "ece", "aece", "classwise_ece", "mce", "rmsce", "ks", "smece"]


@pytest.fixture
def evaluate(capsys):
    def run(*arguments, code=0):
        assert main(["evaluate", *map(str, arguments)]) == code
        return capsys.readouterr()

    return run


@pytest.fixture
def numbers(evaluate):
    def run(*arguments):
        return json.loads(evaluate(*arguments, "--json", "--bootstrap", 20).out)

    return run


# Error (or accuracy), ECE and NLL of real networks as printed in the table that comes with the data, in percent.
REAL = [
    ("cifar10_akamaster_resnets", ["--logits", "resnet20"], 91.73, 5.32, 0.3727),
    ("cifar10_akamaster_resnets", ["--logits", "resnet32"], 92.63, 5.09, 0.3741),
    ("cifar10_akamaster_resnets", ["--logits", "resnet44"], 93.10, 4.69, 0.3333),
    ("cifar10_akamaster_resnets", ["--logits", "resnet56"], 93.39, 4.65, 0.3458),
    ("cifar10_netcal_probs", ["--probs", "lenet_5_probs"], 53.08, 10.79, None),
    ("cifar10_netcal_probs", ["--probs", "wideresnet_16_4_probs"], 91.09, 5.37, None),
    ("cifar10_vgg16_verified_probs", [], 93.59, 3.98, None),
    ("voc2012_espnetv2_pixels", [], 92.18, 0.42, None),
    ("cifar10_widmann_14nets_probs", ["densenet121"], None, 4.10, None),
    ("cifar10_widmann_14nets_probs", ["googlenet"], None, 1.37, None),
    ("cifar10_widmann_14nets_probs", ["resnet18"], None, 5.35, None),
    ("cifar10_widmann_14nets_probs", ["vgg19_bn"], None, 4.92, None),
]
PRINTED = 0.0051 + 0.0005  # two decimals of percent, two of the table's values rounded twice


@pytest.mark.parametrize(("name", "options", "accuracy", "ece", "nll"), REAL)
def test_real_networks_show_their_known_numbers(outputs, numbers, name, options, accuracy, ece, nll):
    path = outputs(name)
    if name == "cifar10_widmann_14nets_probs":
        options = ["--probs", f"probs[{np.load(path)['models'].tolist().index(options[0])}]"]
    found = numbers(path, *options)
    assert 100 * found["ece"] == pytest.approx(ece, abs=PRINTED)
    if accuracy:
        assert 100 * found["accuracy"] == pytest.approx(accuracy, abs=PRINTED)
    if nll:
        assert found["nll"] == pytest.approx(nll, abs=6e-5)


def test_json_has_every_number_with_interval_and_floor(tmp_path, numbers):
    make(2000, 10).save(tmp_path / "p.npz")
    found = numbers(tmp_path / "p.npz")
    assert all(isinstance(found[key], int | float) for key in KEYS)
    for key in KEYS[1:]:
        if key != "mce":  # no interval of the largest of many gaps holds its coverage
            low, high = found["intervals"][key]
            assert low <= found["debiased"][key] <= high
            assert low <= found[key] <= high
    assert "mce" not in found["intervals"]
    assert found["notes"]["mce"]
    assert found["verdict"].keys() == {"miscalibrated", "p", "text"}
    assert found["verdict"]["miscalibrated"] is False
    for key in ("ece", "aece", "classwise_ece", "mce", "rmsce", "ks", "smece"):
        floor = found["floors"][key]
        assert 0 <= floor["low"] <= floor["mean"] <= floor["high"]
    whole = Predictions.load(tmp_path / "p.npz")
    expected = Suite.of(whole.scores, whole.labels, kind="logits", classwise=True).summary()
    assert {key: found[key] for key in KEYS} == pytest.approx({key: expected[key] for key in KEYS})


def test_json_keeps_its_keys(tmp_path, numbers):
    p = make(200, 10)
    p.save(tmp_path / "p.npz")
    Predictions(3 * p.scores, p.labels, "logits").save(tmp_path / "q.npz")
    both = numbers(tmp_path / "p.npz", tmp_path / "q.npz")
    assert both.keys() == {"files", "comparisons"}
    for found in both["files"]:
        assert found.keys() >= {"file", "kind", "bins", "n", *KEYS, "top5", "auroc", "aurc", "confidence"}
        assert found.keys() >= {"debiased", "intervals", "floors", "bounds", "tests", "notes", "unit", "verdict"}
        assert found["verdict"].keys() == {"miscalibrated", "p", "text"}
        assert {"statistic", "p"} == found["tests"]["spiegelhalter"].keys() == found["tests"]["ks"].keys()
        assert found["floors"]["ece"].keys() == {"mean", "low", "high"}
        assert found["intervals"].keys() <= found["debiased"].keys()
        assert found["intervals"].keys().isdisjoint({"mce", *found["floors"]} - found["debiased"].keys())
    (compared,) = both["comparisons"]
    assert compared.keys() == {"file", "against", "differences"}
    assert compared["differences"]["ece"].keys() == {"difference", "low", "high", "p"}
    assert compared["differences"]["mce"]["p"] is None


def test_the_table_shows_percent_with_two_decimals(tmp_path, evaluate):
    p = make(500, 10)
    p.save(tmp_path / "p.npz")
    out, err = evaluate(tmp_path / "p.npz", "--bootstrap", 20)
    assert err == ""  # no progress bar where there is no terminal
    suite = Suite.of(p.scores, p.labels, kind="logits").summary()
    rows = {line.split("  ")[0].strip(): line.split() for line in out.splitlines() if line}
    assert f"{100 * suite['ece']:.2f}" in rows["ECE %"]
    assert f"{suite['nll']:.4f}" in rows["NLL"]
    assert "logits of 10 classes, n = 500, 15 bins" in out
    assert out.startswith("p.npz: No miscalibration beyond chance at n = 500 (p = ")
    assert max(map(len, out.splitlines())) <= 80


def test_overconfidence_is_called_by_its_name(tmp_path, evaluate):
    p = make(3000, 10)
    Predictions(p.scores * 3, p.labels, "logits").save(tmp_path / "hot.npz")
    Predictions(p.scores / 3, p.labels, "logits").save(tmp_path / "cold.npz")
    assert "Miscalibrated, overconfident" in evaluate(tmp_path / "hot.npz", "--bootstrap", 0).out
    assert "Miscalibrated, underconfident" in evaluate(tmp_path / "cold.npz", "--bootstrap", 0).out


def test_the_verdict_is_that_of_the_one_p():
    """Over heats from none to plain to see, the words follow the p, whatever the ECE and its floor."""
    p, seen = make(3000, 10), set()
    for heat in torch.linspace(1.0, 1.3, 16).tolist():
        result = evaluate_predictions(Predictions(p.scores * heat, p.labels, "logits"))
        told = verdict(result)
        assert told.p == result.p
        assert told.miscalibrated == (result.p < 0.05)
        assert told.text.startswith("Miscalibrated" if told.miscalibrated else "No miscalibration beyond chance")
        seen.add(told.miscalibrated)
    assert seen == {True, False}


def test_evaluate_report_and_python_give_one_verdict(tmp_path, evaluate, capsys):
    """A model a little too sure, whose p is near 0.05: once evaluate called it miscalibrated and report did not."""
    p = make(3000, 10)
    for number, heat in enumerate((1.04, 1.06, 1.08, 1.1)):
        file = tmp_path / f"{number}.npz"
        Predictions(p.scores * heat, p.labels, "logits").save(file)
        told = json.loads(evaluate(file, "--json").out)["verdict"]
        assert main(["report", str(file), "--out", str(tmp_path / f"{number}.html"), "--json"]) == 0
        (on_page,) = json.loads(capsys.readouterr().out)["verdict"]
        assert told["text"].removesuffix(".") in on_page
        assert told == vars(verdict(evaluate_predictions(file)))


def test_evaluate_report_and_python_give_one_verdict_on_rows_of_images(tmp_path, evaluate, capsys):
    """Every row 20 times: evaluate once took the rows as independent, and report the images."""
    few = make(150, 10, seed=1)
    rows = torch.arange(150).repeat_interleave(20)
    Predictions(few.scores[rows] * 1.1, few.labels[rows], "logits", image=rows).save(file := tmp_path / "p.npz")
    told = json.loads(evaluate(file, "--json").out)["verdict"]
    assert main(["report", str(file), "--out", str(tmp_path / "p.html"), "--json"]) == 0
    (on_page,) = json.loads(capsys.readouterr().out)["verdict"]
    assert told["text"].removesuffix(".") in on_page
    assert told == vars(verdict(evaluate_predictions(file)))
    assert "Miscalibrated" in evaluate(file, "--by", "row").out


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv", "parts"])
def test_every_format_gives_the_same_numbers(tmp_path, numbers, suffix):
    p = make(300, 3, "probs", dtype=torch.float64)
    expected = Suite.of(p.scores, p.labels, kind="probs", classwise=True, bins=10).summary()
    if suffix == ".csv":
        path, options = write_csv(tmp_path / "p.csv", p), ["--probs", "p0,p1,p2", "--label", "y"]
    elif suffix == "parts":
        path, options = tmp_path / "parts", []
        p[:100].save(path / "a.parquet")
        p[100:].save(path / "b.parquet")
    else:
        path, options = tmp_path / f"p{suffix}", []
        p.save(path)
    found = numbers(path, *options, "--bins", 10)
    assert {key: found[key] for key in KEYS} == pytest.approx({key: expected[key] for key in KEYS})
    if suffix == "parts":
        assert numbers(path / "*.parquet", "--bins", 10) == {**found, "file": "*.parquet"}


def test_triples_leave_out_what_they_cannot_tell(tmp_path, numbers, evaluate):
    make(500, 5, "triples").save(tmp_path / "t.npz")
    found = numbers(tmp_path / "t.npz")
    assert found["nll"] is found["brier"] is found["classwise_ece"] is None
    assert found["ece"] > 0
    assert "NLL" not in evaluate(tmp_path / "t.npz", "--bootstrap", 20).out


def test_groups_have_numbers_of_their_own(tmp_path, numbers, evaluate):
    p = make(600, 5)
    names = np.array(["young", "old"])[np.arange(600) % 2]
    rows = pa.array(p.scores.numpy().tolist())
    pq.write_table(pa.table({"logits": rows, "labels": p.labels.numpy(), "age": names}), tmp_path / "p.parquet")
    found = numbers(tmp_path / "p.parquet", "--by", "age")
    assert {name: group["n"] for name, group in found["groups"].items()} == {"young": 300, "old": 300}
    young = Suite.of(p.scores[::2], p.labels[::2], kind="logits").summary()
    assert found["groups"]["young"]["ece"] == pytest.approx(young["ece"])
    assert found["groups"]["young"]["floors"]["ece"]["mean"] > found["floors"]["ece"]["mean"]
    assert numbers(tmp_path / "p.parquet", "--group", "age", "--by", "group") == found
    out = evaluate(tmp_path / "p.parquet", "--by", "age", "--bootstrap", 20).out
    assert "\nyoung  300" in out
    assert "\nold    300" in out


def test_slices_add_up_to_the_whole():
    p = make(600, 5, group=True, image=True)
    whole = count([p], by_group=True)
    parts = count([p[:7], p[7:200], p[200:]], by_group=True)
    assert parts.labels == whole.labels
    one, other = parts.result(), whole.result()
    pairs = [(one, other), *zip(one.groups.values(), other.groups.values(), strict=True)]
    assert len(pairs) == 4
    for mine, theirs in pairs:
        assert mine.values == pytest.approx(theirs.values, abs=1e-6)
        for name, interval in theirs.intervals.items():
            assert mine.intervals[name] == pytest.approx(interval, abs=1e-6), name


@pytest.mark.parametrize("options", [[], ["--by", "group", "--by", "row"], ["--by", "image"]])
def test_few_rows_have_finite_numbers(tmp_path, evaluate, options):
    p = make(5, 4)
    replace(p, group=torch.tensor([0, 0, 1, 1, 1]), image=torch.tensor([0, 0, 0, 1, 2])).save(tmp_path / "p.npz")
    found = json.loads(evaluate(tmp_path / "p.npz", *options, "--json").out)
    for part in (found, *found.get("groups", {}).values()):
        assert all(None not in ends for ends in part["intervals"].values())
        assert {"ece", "aece", "accuracy"} <= part["intervals"].keys()
    assert "nan" not in evaluate(tmp_path / "p.npz", *options, "--bootstrap", 20).out


def test_one_unit_has_no_interval_no_comparison_and_no_verdict_over_images(tmp_path, evaluate):
    p = replace(make(40, 4), image=torch.zeros(40, dtype=torch.long))
    p.save(tmp_path / "p.npz")
    replace(p, scores=3 * p.scores).save(tmp_path / "q.npz")
    done = evaluate(tmp_path / "p.npz", tmp_path / "q.npz", "--by", "image")
    assert "q.npz is not compared with p.npz: all rows belong to one image" in done.err
    assert "p.npz: No verdict: too few independent images to test" in done.out
    found = json.loads(evaluate(tmp_path / "p.npz", tmp_path / "q.npz", "--by", "image", "--json").out)
    assert found["comparisons"] == []
    assert [model["intervals"] for model in found["files"]] == [{}, {}]


def test_what_is_not_finite_is_null_in_json(tmp_path, evaluate):
    p = make(60, 3, "probs")
    p.labels[7] = 1
    zero = p.scores.clone()
    zero[7] = torch.tensor([1.0, 0.0, 0.0])
    replace(p, scores=zero).save(tmp_path / "zero.npz")
    p.save(tmp_path / "p.npz")
    found = json.loads(evaluate(tmp_path / "zero.npz", tmp_path / "p.npz", "--json", "--bootstrap", 20).out)
    assert found["files"][0]["nll"] is None
    (comparison,) = found["comparisons"]
    assert comparison["differences"]["nll"] == {"difference": None, "low": None, "high": None, "p": None}
    assert comparison["differences"]["ece"]["difference"] is not None
    told = evaluate(tmp_path / "zero.npz", "--json", "--protocol", "all").out
    assert "Infinity" not in told
    assert json.loads(told)["protocols"]["guo"]["nll"] is None


def test_a_group_without_a_labelled_row_is_left_out_and_named(tmp_path, evaluate):
    p = make(60, 4)
    replace(p, labels=p.labels.masked_fill(torch.arange(60) < 20, -100), group=torch.arange(60) // 20).save(
        tmp_path / "p.npz"
    )
    done = evaluate(tmp_path / "p.npz", "--by", "group", "--bootstrap", 20)
    assert "p.npz: groups without a labelled row are left out: 0\n" in done.err
    assert "\n1      20" in done.out
    found = json.loads(evaluate(tmp_path / "p.npz", "--by", "group", "--bootstrap", 20, "--json").out)
    assert list(found["groups"]) == ["1", "2"]


def test_many_groups_have_numbers_and_intervals_each():
    p = make(3000, 4)
    few, many = (count([replace(p, group=torch.arange(3000) % n)], by_group=True).result() for n in (8, 300))
    assert "smece" in few.groups["0"].floors
    assert len(many.groups) == 300
    for group in many.groups.values():
        assert {"accuracy", "ece", "nll", "classwise_ece"} <= group.intervals.keys()
        assert "smece" not in group.floors  # it takes longer than all else
        assert "smece" in group.values
    assert many.estimates == few.estimates


def test_images_of_few_groups_are_kept_apart_and_those_of_many_are_not():
    p = replace(make(1200, 4), image=torch.arange(1200) // 5)
    few, many = (count([replace(p, group=p.image % n)], by_group=True, by_image=True).result() for n in (4, 60))
    assert "ece" in few.groups["0"].intervals
    assert many.groups["0"].intervals == {}
    assert verdict(many.groups["0"]).miscalibrated is None


@pytest.mark.parametrize("classes", [4, 200])
def test_many_groups_in_slices_add_up_to_the_whole(classes):
    p = replace(make(1200, classes), group=torch.arange(1200) // 20)
    whole, sliced = count([p], by_group=True), count([p[:250], p[250:700], p[700:]], by_group=True)
    joined = count([p[:250]], by_group=True) + count([p[250:]], by_group=True, first=250)
    expected = whole.result().groups
    for parts in (sliced.result().groups, joined.result().groups):
        for name, group in expected.items():
            assert parts[name].values == pytest.approx(group.values, abs=1e-6)
            assert parts[name].intervals.keys() == group.intervals.keys()


def test_whole_images_are_resampled_unless_rows_are_asked_for(tmp_path, numbers, evaluate):
    # Pixels of an image are copies of each other: the truth is known from n / 50 of them, and the interval must say so.
    few = make(60, 5, seed=3)
    copies = few[torch.arange(60).repeat_interleave(50)]
    p = Predictions(copies.scores, copies.labels, "logits", image=torch.arange(60).repeat_interleave(50))
    p.save(tmp_path / "p.npz")
    width = {}
    for by in (["--by", "row"], []):
        found = json.loads(evaluate(tmp_path / "p.npz", *by, "--json", "--bootstrap", 400).out)
        width[len(by)] = np.diff(found["intervals"]["accuracy"])[0]
    assert width[0] / width[2] == pytest.approx(50**0.5, rel=0.2)
    told = " ".join(evaluate(tmp_path / "p.npz", "--by", "row", "--bootstrap", 20).out.split())
    assert "All of this assumes that rows are independent" in told
    out = evaluate(tmp_path / "p.npz", "--bootstrap", 200).out
    assert "No miscalibration beyond chance at this many images" in " ".join(out.split())
    hot = Predictions(p.scores * 9, p.labels, "logits", image=p.image)
    hot.save(tmp_path / "hot.npz")
    out = evaluate(tmp_path / "hot.npz", "--bootstrap", 200).out
    assert "Miscalibrated, overconfident" in out
    assert "Images are assumed to be independent" in " ".join(out.split())


def test_two_models_are_compared_on_the_same_samples(tmp_path, numbers, evaluate):
    p = make(3000, 10)
    p.save(tmp_path / "a.npz")
    hot = Predictions(p.scores * 3, p.labels, "logits")
    hot.save(tmp_path / "b.parquet")
    found = json.loads(evaluate(tmp_path / "a.npz", tmp_path / "b.parquet", "--json", "--bootstrap", 200).out)
    a, b = found["files"]
    (comparison,) = found["comparisons"]
    assert (comparison["file"], comparison["against"]) == ("b.parquet", "a.npz")
    ece = comparison["differences"]["ece"]
    assert ece["difference"] == pytest.approx(b["debiased"]["ece"] - a["debiased"]["ece"], abs=1e-6)
    assert 0 < ece["low"] < ece["difference"] < ece["high"]
    assert ece["p"] < 0.01
    assert comparison["differences"]["accuracy"]["p"] > 0.5
    out = evaluate(tmp_path / "a.npz", tmp_path / "b.parquet", "--bootstrap", 20).out
    told = " ".join(out.split())
    assert "b.parquet against a.npz, on the same 3000 samples: The ECE is higher by more than chance" in told


def test_models_of_one_file_are_compared_by_name(tmp_path, numbers):
    p = make(300, 4)
    np.savez(tmp_path / "nets.npz", one=p.scores, two=p.scores * 2, three=p.scores * 3, labels=p.labels)
    names = [word for name in ("one", "two", "three") for word in ("--logits", name)]
    found = numbers(tmp_path / "nets.npz", *names)
    assert [model["file"] for model in found["files"]] == ["one", "two", "three"]
    assert [pair["file"] for pair in found["comparisons"]] == ["two", "three"]


def test_other_samples_are_not_compared(tmp_path, evaluate):
    make(300, 4, seed=1).save(tmp_path / "a.npz")
    make(300, 4, seed=2).save(tmp_path / "b.npz")
    done = evaluate(tmp_path / "a.npz", tmp_path / "b.npz", "--json", "--bootstrap", 20)
    assert json.loads(done.out)["comparisons"] == []
    assert "b.npz is not compared with a.npz: it has different labels" in done.err


def test_ignored_rows_do_not_count(tmp_path, numbers, evaluate):
    p = make(300, 4)
    labels = torch.where(torch.arange(300) < 50, 255, p.labels)
    Predictions(p.scores, labels, "logits").save(tmp_path / "p.npz")
    found = numbers(tmp_path / "p.npz", "--ignore-index", 255)
    p[50:].save(tmp_path / "q.npz")
    rest = numbers(tmp_path / "q.npz")
    assert found["n"] == 250
    assert {key: found[key] for key in KEYS} == {key: rest[key] for key in KEYS}
    assert "n = 250, 50 left out" in evaluate(tmp_path / "p.npz", "--ignore-index", 255, "--bootstrap", 0).out
    assert "row 0: the label is 255" in evaluate(tmp_path / "p.npz", code=2).err


def test_markdown_and_no_bootstrap(tmp_path, evaluate):
    make(300, 4).save(tmp_path / "p.npz")
    out = evaluate(tmp_path / "p.npz", "--markdown", "--bootstrap", 0).out
    assert "| metric | value | debiased | 95 % interval |" in out
    assert "| ---: |" in out
    assert json.loads(evaluate(tmp_path / "p.npz", "--json", "--bootstrap", 0).out)["intervals"] == {}


def test_an_infinite_nll_is_null_in_json(tmp_path, numbers):
    np.savez(tmp_path / "p.npz", probs=np.eye(4)[[0, 1, 2, 3] * 5], labels=np.array([0, 1, 2, 2] * 5))
    assert numbers(tmp_path / "p.npz")["nll"] is None


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda p: p.write_bytes(b"PK\x03\x04"), "is not a complete .npz file"),
        (lambda p: np.savez(p, resnet=np.zeros((3, 2)), labels=[0, 1, 1]), "as in --logits resnet"),
        (lambda p: np.savez(p, logits=np.zeros((3, 2)), y=[0, 1, 1]), "as in --label y"),
        (lambda p: np.savez(p, logits=[[0.0, np.nan]] * 3, labels=[0, 1, 1]), "row 0: the logits contain NaN"),
        (lambda p: np.savez(p, probs=[[0.0, 3]] * 3, labels=[0, 1, 1]), "outside 0..1"),
        (lambda p: np.savez(p, logits=np.zeros((0, 2)), labels=np.zeros(0, int)), "no labelled rows"),
        (lambda p: np.savez(p, logits=np.zeros((3, 2)), labels=np.full(3, -100)), "no labelled rows"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, evaluate, made, says):
    made(tmp_path / "p.npz")
    done = evaluate(tmp_path / "p.npz", code=2)
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "p.npz" in done.err or "labelled" in done.err
    assert says in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]


def test_missing_groups_and_wrong_options_are_bad_input(tmp_path, evaluate):
    make(30, 4).save(tmp_path / "p.npz")
    make(30, 4).save(tmp_path / "q.npz")
    assert "pass the name of their column, as in --group" in evaluate(tmp_path / "p.npz", "--by", "group", code=2).err
    assert "pass the name of its column, as in --image" in evaluate(tmp_path / "p.npz", "--by", "image", code=2).err
    assert "--bins: expected a whole number in [1, 100000]" in evaluate(tmp_path / "p.npz", "--bins", 0, code=2).err
    twice = ["--logits", "logits", "--logits", "logits", "--logits", "logits"]
    assert "3 names of scores for 2 files" in evaluate(tmp_path / "p.npz", tmp_path / "q.npz", *twice, code=2).err


# Conventions of published numbers.


@pytest.mark.parametrize(
    ("name", "option", "aece"),
    [
        *zip(
            ["cifar10_akamaster_resnets"] * 4,
            [["--logits", f"resnet{depth}"] for depth in (20, 32, 44, 56)],
            [5.30, 5.07, 4.64, 4.64],
            strict=True,
        ),
        ("cifar10_netcal_probs", ["--probs", "lenet_5_probs"], 10.79),
        ("cifar10_netcal_probs", ["--probs", "wideresnet_16_4_probs"], 5.37),
        ("cifar10_vgg16_verified_probs", [], 3.97),
        ("voc2012_espnetv2_pixels", [], 0.39),
    ],
)
def test_the_reference_rule_gives_the_known_adaptive_ece(outputs, evaluate, name, option, aece):
    path = outputs(name)
    found = json.loads(evaluate(path, *option, "--json", "--protocol", "aece-reference").out)
    assert 100 * found["protocols"]["aece-reference"]["aece"] == pytest.approx(aece, abs=PRINTED)


def test_all_conventions_stand_side_by_side_with_how_they_differ(tmp_path, evaluate):
    make(300, 4, image=True).save(tmp_path / "p.npz")
    out = " ".join(evaluate(tmp_path / "p.npz", "--protocol", "all").out.split())
    found = json.loads(evaluate(tmp_path / "p.npz", "--protocol", "all", "--json").out)
    assert {"guo", "aece-reference", "mbls-segmentation", "cals-segmentation", "torchmetrics", "ts-grid"} <= found[
        "why"
    ].keys()
    assert found["protocols"].keys() == found["why"].keys()
    for name, why in found["why"].items():
        assert f"{name}: {why}." in out
    p = Predictions.load(tmp_path / "p.npz")
    assert found["protocols"]["guo"]["ece"] == pytest.approx(
        Suite.of(p.scores, p.labels, kind="logits").summary()["ece"]
    )
    assert found["protocols"]["cals-segmentation"]["ece"] > found["protocols"]["guo"]["ece"]


def test_conventions_that_do_not_fit_are_left_out_or_refused(tmp_path, evaluate):
    make(300, 4).save(tmp_path / "p.npz")
    assert "mbls-segmentation: left out" in evaluate(tmp_path / "p.npz", "--protocol", "all").out
    assert "as in --image NAME" in evaluate(tmp_path / "p.npz", "--protocol", "mbls-segmentation", code=2).err
    assert "did you mean 'guo'" in evaluate(tmp_path / "p.npz", "--protocol", "gou", code=2).err
    make(300, 4, "triples", image=True).save(tmp_path / "t.npz")
    assert "ts-grid: left out" in evaluate(tmp_path / "t.npz", "--protocol", "all").out
    assert "needs the scores of all classes" in evaluate(tmp_path / "t.npz", "--protocol", "ts-grid", code=2).err


def test_the_largest_error_gives_a_threshold_for_all_and_for_each_predicted_class(tmp_path, capsys):
    random = torch.Generator().manual_seed(0)
    logits = 6 * torch.randn(2000, 3, generator=random)
    labels = torch.multinomial(logits.softmax(1), 1, generator=random)[:, 0]
    Predictions(logits, labels, kind="logits").save(tmp_path / "p.npz")
    command = ["evaluate", str(tmp_path / "p.npz"), "--max-error", "5%", "--by", "predicted", "--quiet"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["decision"]
    confidence = logits.softmax(1).amax(1)
    assert found["accepted"] == int((confidence >= found["threshold"]).sum())
    assert found["wrong"] <= 0.05 * found["accepted"]
    assert sorted(found["groups"]) == ["0", "1", "2"]
    assert main(command) == 0
    assert "Accept automatically at or above" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "p.npz"), "--max-error", "5"]) == 2
    assert "--max-error: expected a share between 0 and 1" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
def test_a_row_of_weight_w_counts_as_w_rows_in_evaluate_and_calibrate(tmp_path, capsys, suffix):
    p, weight = make(300, 4), torch.arange(300) % 4
    replace(p, weight=weight.double()).save(tmp_path / f"weighted{suffix}")
    p[torch.arange(300).repeat_interleave(weight)].save(tmp_path / f"repeated{suffix}")

    def found(command, name, *words):
        assert main([command, str(tmp_path / f"{name}{suffix}"), *words, "--json", "--quiet"]) == 0
        return json.loads(capsys.readouterr().out)

    once, often = found("evaluate", "weighted", "--weight", "weight"), found("evaluate", "repeated")
    plain = found("evaluate", "weighted")
    for name in ("accuracy", "nll", "ece", "brier"):
        assert once[name] == pytest.approx(often[name], rel=1e-6)
        assert once[name] != pytest.approx(plain[name], rel=1e-4)
    fits = [found("calibrate", "weighted", "--weight", "weight"), found("calibrate", "repeated")]
    one, other = (fit["methods"][0]["parameters"]["temperature"] for fit in fits)
    assert one == pytest.approx(other, rel=1e-4)


def test_a_weight_below_zero_is_named_with_its_row(tmp_path, capsys):
    replace(make(5), weight=torch.tensor([1.0, 1, -2, 1, 1])).save(tmp_path / "p.npz")
    assert main(["evaluate", str(tmp_path / "p.npz"), "--weight", "weight"]) == 2
    assert "row 2: expected a weight of 0 or more, got -2" in capsys.readouterr().err
