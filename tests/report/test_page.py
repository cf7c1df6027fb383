"""What goes into the page: exact sums, honest calibration, words, escaped names."""

import base64
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from acls import write_report
from acls.cli import main
from acls.errors import InputError
from acls.metrics import Suite
from acls.metrics.estimates import Estimate
from acls.metrics.significance import Floor
from acls.predictions import Predictions, open_batches
from acls.report.page.build import embedded, render, results, write
from acls.report.page.diagram_data import OFFERED, binned, by_class
from acls.report.page.overview import conclusions, decisions
from acls.report.page.pictures import LARGEST, data_address, encode, of_files
from acls.report.page.sources import KEPT, cross_fitted, of_file, of_path, of_run, of_study
from acls.report.page.subjects import Subject, named, rank_subjects, told_apart
from acls.results import Record, Result, evaluate, recommend
from acls.results.details import MISTAKES
from acls.study.store import Row, Store
from tests.report.made import confidences, file, predictions, run, subject

NUMBERS = Result(300, {"ece": Estimate(0.123, None, 0.1, 0.15)}, {"ece": Floor(0.01, 0.0, 0.02)})


def stored(method, seed, *, run="runs/gone", settings=None, protocol=None):
    """A row that says what it is of, and no more."""
    return Row(method, seed, "none", NUMBERS, protocol or {}, "r", "test", 1.0, run, settings or {})


HOSTILE = "<script>window.hacked = 1</script>"


def ece(sums):
    count, confidence, right = (np.array(sums[name]) for name in ("count", "confidence", "right"))
    return np.abs(confidence - right).sum() / count.sum()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def overconfident(folder):
    return subject(folder, n=4000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rounded", [False, True], ids=["single", "tied"])
def test_every_number_of_bins_offered_gives_the_packages_own_errors(dtype, rounded):
    p = predictions(n=777)
    probs = p.scores.to(dtype).softmax(1)
    if rounded:  # on the edges of bins, and with ties across the splits of equal mass
        top = probs.max(1).values.mul(20).round().div(20)
        found = {b: Suite.of_triples(top, p.scores.argmax(1), p.labels, bins=b) for b in OFFERED}
    else:
        found = {b: Suite.of(probs, p.labels, kind="probs", bins=b) for b in OFFERED}
    sums = binned(found[15].confidences)
    for bins, suite in found.items():
        assert sums["width"][bins]["count"] == suite.bins.samples.tolist()
        assert ece(sums["width"][bins]) == pytest.approx(suite.bins.ece, abs=1e-6)
        assert ece(sums["mass"][bins]) == pytest.approx(suite.summary()["aece"], abs=1e-6)
        assert sum(sums["mass"][bins]["count"]) == 777


def test_sums_of_more_samples_than_are_kept_one_by_one_stay_close(monkeypatch):
    monkeypatch.setattr("acls.metrics.confidences.EXACT", 100)
    p = predictions(n=3000)
    suite = Suite.of(p.scores, p.labels)
    assert suite.confidences.table is not None
    sums = binned(suite.confidences)
    assert ece(sums["width"][15]) == pytest.approx(suite.bins.ece, abs=1e-3)
    assert ece(sums["mass"][15]) == pytest.approx(suite.summary()["aece"], abs=1e-3)


def test_class_rows_add_up_to_the_classwise_ece():
    p = predictions(n=500)
    suite = Suite.of(p.scores, p.labels, classwise=True)
    rows = by_class(suite.classwise, most=99)
    assert np.mean([row["ece"] for row in rows]) == pytest.approx(suite.classwise.ece, abs=1e-6)
    assert [row["labels"] for row in rows] == p.labels.bincount(minlength=4).tolist()
    assert len(by_class(suite.classwise, most=2)) == 2


def test_cross_fitting_scales_each_half_by_the_temperature_of_the_other():
    """Rows of odd numbers are sharper: their temperature is the higher one, and it is the even rows that get it."""
    p = predictions(n=8000, sharpness=1.0)
    sharper = torch.where(torch.arange(8000)[:, None] % 2 == 1, 3 * p.scores, p.scores)
    after, t = cross_fitted([replace(p, scores=sharper)])
    scaled = next(after).log_probs()
    divided_by = ((sharper[:, 0] - sharper[:, 1]) / (scaled[:, 0] - scaled[:, 1])).tolist()
    assert divided_by[0::2] == pytest.approx([3.0] * 4000, rel=0.1)
    assert divided_by[1::2] == pytest.approx([1.0] * 4000, rel=0.1)
    assert 1 < t < 3


def test_a_row_has_no_say_in_its_own_temperature():
    p = predictions(n=200)
    after, _ = cross_fitted([p])
    changed = replace(p, labels=torch.where(torch.arange(200) % 2 == 0, (p.labels + 1) % 4, p.labels))
    otherwise, _ = cross_fitted([changed])
    even, odd = slice(0, None, 2), slice(1, None, 2)
    one, other = next(after).log_probs(), next(otherwise).log_probs()
    assert torch.equal(one[even], other[even])
    assert not torch.allclose(one[odd], other[odd])


def test_slices_are_cross_fitted_as_the_whole(folder):
    p = predictions(n=900)
    path = file(folder, "slices.npz", n=900)
    whole, t = cross_fitted([p])
    sliced, same = cross_fitted(open_batches(path, rows=70))
    assert same == pytest.approx(t)
    both = [evaluate(after).suite.bins.ece for after in (whole, sliced)]
    assert both[0] == pytest.approx(both[1], abs=1e-9)


def test_the_halves_are_subsampled_in_bounded_memory_but_the_temperature_is_that_of_all_rows(monkeypatch):
    p = predictions(n=4000)
    p.labels[::7] = -100
    whole, t = cross_fitted([p])
    monkeypatch.setattr("acls.report.page.sources.KEPT", 4 * 1000)
    part, same = cross_fitted([p[start : start + 500] for start in range(0, 4000, 500)])
    assert same == pytest.approx(t, rel=1e-6)
    near, exact = (Predictions.concat(list(after)).log_probs().exp() for after in (part, whole))
    assert not torch.equal(near, exact)
    assert torch.allclose(near, exact, atol=0.15)
    assert KEPT * 4 <= 2**26


def test_report_and_calibrate_find_the_same_temperature_of_a_large_file(tmp_path, capsys, monkeypatch):
    path = file(tmp_path, n=4000)
    monkeypatch.setattr("acls.report.page.sources.KEPT", 4 * 1000)
    assert main(["report", str(path), "--out", str(tmp_path / "page.html"), "--bootstrap", "0", "--json"]) == 0
    (on_page,) = json.loads(capsys.readouterr().out)["models"]
    assert main(["calibrate", str(path), "--json"]) == 0
    (method,) = json.loads(capsys.readouterr().out)["methods"]
    assert on_page["temperature"] == pytest.approx(method["parameters"]["temperature"], rel=1e-6)


def test_a_temperature_is_found_on_the_page_whatever_its_settings():
    """`--posthoc "temperature(objective=ece)"` once had a temperature of null."""
    names = ("none", "ETS", "Temperature(objective=ece)")
    states = tuple(Record("CE", 1, name, Result(1, {}), {}) for name in names)
    assert Subject("", states).scaled is states[2]
    assert Subject("", states[:2]).scaled is None


def test_the_worst_mistakes_are_the_most_confident_ones_across_slices():
    p = predictions(n=700)
    confidence, right = confidences(p)
    wrong = np.flatnonzero(~right)
    expected = wrong[np.argsort(-confidence[wrong], kind="stable")][:MISTAKES]
    found = evaluate([p[start : start + 90] for start in range(0, 700, 90)], detailed=True).details.mistakes
    assert [one.row for one in found] == expected.tolist()
    assert [one.confidence for one in found] == pytest.approx(confidence[expected].tolist(), rel=1e-5)
    assert all(one.predicted != one.label for one in found)


def test_of_an_image_the_worst_pixel_is_shown_and_ignored_ones_are_not():
    p = predictions(n=600, image=torch.arange(600) // 100)
    p = replace(p, labels=torch.where(p.image == 2, -100, p.labels))
    found = evaluate(p, detailed=True).details.mistakes
    assert sorted(one.image for one in found) == [0, 1, 3, 4, 5]


def test_the_verdict_says_the_error_its_worth_the_way_and_the_remedy(overconfident):
    (sentence,) = conclusions([overconfident])
    assert re.fullmatch(
        r"outputs\.npz: Miscalibrated, overconfident \(p < 0\.001\): mean confidence \d+\.\d+ %, accuracy \d+\.\d+ %, "
        r"ECE \d+\.\d+ %, without the bias of noise \d+\.\d+ %; at temperature (1\.9|2|2\.1), the ECE is [\d.]+ %\.",
        sentence,
    )


def test_the_verdict_says_when_there_is_nothing_wrong(folder):
    (sentence,) = conclusions([subject(folder, name="fine.npz", n=1500, sharpness=1.0)])
    assert "No miscalibration beyond chance at n = 1,500" in sentence


def test_the_page_leaves_the_advice_on_a_temperature_to_calibrate(folder):
    """Here the ECE at the temperature is lower by chance, and the advice is to keep the model as it is."""
    path = file(folder, "near.npz", n=300, sharpness=1.0, seed=21)
    found = of_file(path, replicates=0)
    before, after = (state.result["ece"] for state in found.states)
    assert after < before
    assert recommend(path).chosen is None
    (sentence,) = conclusions([found])
    assert re.search(r"; at temperature [\d.]+, the ECE is [\d.]+ %\.$", sentence)


def test_the_verdict_names_underconfidence(folder):
    (sentence,) = conclusions([subject(folder, name="shy.npz", sharpness=0.4)])
    assert "Miscalibrated, underconfident" in sentence
    assert "; at temperature 0." in sentence


def test_the_verdict_of_several_names_the_best_and_whether_that_is_chance(folder):
    good = subject(folder, name="good.npz", n=2000, sharpness=1.0)
    bad = subject(folder, name="bad.npz", n=2000, sharpness=3.0)
    ranked = rank_subjects([bad, good])
    first, second, *each = conclusions([bad, good], ranked)
    assert first.startswith("good.npz has the lowest ECE, ")
    assert re.search(r"% debiased, \d+\.\d\d points below bad\.npz \(95 % interval \S+ to \S+; p < 0\.001\)\.$", first)
    assert second == "1 of 2 networks are miscalibrated by more than chance."
    assert len(each) == 2


def test_networks_of_different_protocols_are_neither_ranked_nor_put_in_one_table(folder):
    one = subject(folder, name="one.npz", n=400)
    states = tuple(replace(state, protocol={"bins": 25}) for state in one.states)
    both = [one, named(replace(one, states=states), method="other")]
    assert rank_subjects(both) == []
    assert "not compared" in conclusions(both)[0]
    assert [len(table.rows) for table in results(both)] == [2, 2]
    text = render(both, title="x")
    assert text.count("<table>") == 2
    assert "bins 25" in text


def test_networks_on_other_samples_are_not_ranked(folder):
    two = [subject(folder, name=f"{n}.npz", n=n) for n in (300, 400)]
    assert rank_subjects(two) == []
    assert conclusions(two)[0] == "The networks were tested on different samples, so they are not compared."
    assert len(conclusions(two)) == 3


def test_as_many_samples_with_other_labels_are_other_samples(folder):
    two = [subject(folder, name=f"seed{seed}.npz", seed=seed, n=300) for seed in (1, 2)]
    assert rank_subjects(two) == []
    assert "different samples" in conclusions(two)[0]


def test_stored_numbers_without_outputs_are_of_other_samples_where_the_data_set_is_another(tmp_path):
    for method, data in (("CE", "digits"), ("ACLS", "synthetic")):
        settings = {"recipe": {"data": {"name": data}}}
        Store(tmp_path, create=True).add(stored(method, 1, settings=settings))
    assert "different samples" in conclusions(of_study(tmp_path))[0]


def test_triples_make_a_page_without_what_they_cannot_tell(folder):
    p = predictions()
    confidence, predicted = p.top()
    Predictions(None, p.labels, "triples", confidence=confidence, predicted=predicted).save(folder / "triples.npz")
    found = of_file(folder / "triples.npz", replicates=10)
    assert [state.posthoc for state in found.states] == ["none"]
    data = page_data(render([found], title="x"))
    assert data["subjects"][0]["states"][0]["classes"] == []


def page_data(text):
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(block)


def test_names_from_files_cannot_leave_their_place(overconfident):
    hostile = replace(
        named(overconfident, method=f"{HOSTILE}</script><!--<script>"),
        names=(HOSTILE, "&amp;", "\u2028", '"'),
        source=HOSTILE,
    )
    text = render([hostile], title=HOSTILE)
    assert "<script>window" not in text
    assert len(re.findall("<script", text)) == 2
    assert "<!--<script" not in text
    data = page_data(text)["subjects"][0]
    assert data["method"] == hostile.method
    assert data["names"] == list(hostile.names)


def test_embedded_json_holds_no_character_that_ends_a_script():
    text = embedded({"</script>": "<!-- & \u2028 \u2029"})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"</script>": "<!-- & \u2028 \u2029"}


def test_the_policy_allows_our_script_alone_and_no_request(overconfident):
    import hashlib

    text = render([overconfident], title="x")
    script = re.findall(r"<script>(.*?)</script>", text, re.S)[-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)", text)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_a_run_has_its_curves_pictures_settings_and_versions(tmp_path):
    found = of_run(run(tmp_path / "run"), replicates=10)
    assert found.method == "ACLS(margin=6.0)"
    assert found.seed == 1
    assert [state.posthoc for state in found.states] == ["none", "Temperature"]
    assert found.names[3] == "digit 3"
    assert len(found.history) == 5
    assert found.environment["versions"]["torch"] == "2.0"
    assert "digits" in found.settings
    assert found.mistakes
    assert set(found.pictures) == {one.row for one in found.mistakes}


def test_a_runs_temperature_is_fitted_on_its_validation_part(tmp_path):
    from acls.calibrators import Temperature

    folder = run(tmp_path / "run")
    val = Predictions.load(folder / "predictions" / "val.safetensors")
    fitted = Temperature().fit(val.scores, val.labels)
    assert of_run(folder, replicates=0).temperature == pytest.approx(float(fitted.temperature))


def test_a_run_that_is_not_finished_says_how_to_go_on(tmp_path):
    folder = run(tmp_path / "run")
    (folder / "predictions" / "test.safetensors").unlink()
    with pytest.raises(InputError, match="acls train --resume"):
        of_run(folder)


def test_a_folder_of_runs_is_all_of_them(tmp_path):
    run(tmp_path / "a", loss="CE()", seed=1)
    run(tmp_path / "b", loss="CE()", seed=2)
    found = of_path(tmp_path, replicates=0)
    assert [(one.method, one.seed) for one in found] == [("CE", 1), ("CE", 2)]


def found_in(*folders):
    return told_apart([one for folder in folders for one in of_path(folder, replicates=0)])


def test_runs_that_differ_in_the_seed_alone_are_seeds_of_one_method(tmp_path):
    for seed in (1, 2):
        run(tmp_path / f"{seed}", loss="CE()", seed=seed, draw=0, log=() if seed == 1 else ("tensorboard",))
    found = found_in(tmp_path)
    assert [one.method for one in found] == ["CE", "CE"]
    assert "over 2 seeds" in conclusions(found)[0]
    assert [line[-2] for line in results(found)[0].rows] == ["2", "2"]


def test_settings_that_change_no_result_do_not_tell_seeds_apart(tmp_path):
    """A study may go on with other workers, or save its state more often: its runs are still seeds of one method."""
    run(tmp_path / "a", seed=1, draw=1)
    run(tmp_path / "b", seed=2, draw=1, **{"save_every": 50, "data.workers": 3, "threads": 2})
    assert {one.method for one in told_apart(of_path(tmp_path))} == {"ACLS(margin=6.0)"}


def test_runs_of_other_settings_are_no_seeds_and_their_names_say_the_setting(tmp_path):
    for name, seed, epochs in (("a", 1, 3), ("b", 1, 1), ("c", 2, 1)):
        run(tmp_path / name, loss="CE()", seed=seed, draw=0, epochs=epochs)
    found = found_in(tmp_path)
    assert [one.method for one in found] == ["CE · epochs 3", "CE · epochs 1", "CE · epochs 1"]
    assert [line[-2] for line in results(found)[0].rows] == ["1", "2", "1", "2"]
    assert {one.best for one in rank_subjects(found)} <= {"CE · epochs 3", "CE · epochs 1"}
    write(of_path(tmp_path, replicates=0), tmp_path / "page.html")
    assert page_data((tmp_path / "page.html").read_text())["methods"] == ["CE · epochs 3", "CE · epochs 1"]


def test_runs_on_other_data_are_told_apart_by_the_recipe_and_not_ranked(tmp_path):
    run(tmp_path / "a", loss="CE()", draw=0)
    run(tmp_path / "b", loss="CE()", draw=0, recipe="synthetic_mlp")
    found = found_in(tmp_path)
    assert [one.method for one in found] == ["CE · digits_cnn", "CE · synthetic_mlp"]
    assert rank_subjects(found) == []
    assert "different samples" in conclusions(found)[0]


def test_a_seed_that_is_there_twice_is_told_apart_by_its_place(tmp_path):
    run(tmp_path / "a", loss="CE()")
    run(tmp_path / "b", loss="CE()")
    assert [one.method for one in found_in(tmp_path)] == [f"CE · {tmp_path / name}" for name in ("a", "b")]


def test_a_method_of_two_studies_keeps_the_seeds_of_each(tmp_path):
    for name in ("one", "two"):
        store = Store(tmp_path / name, create=True)
        for seed in (1, 2):
            store.add(stored("CE", seed))
    found = found_in(tmp_path / "one", tmp_path / "two")
    assert [one.method for one in found] == [f"CE · {tmp_path / name}" for name in ("one", "one", "two", "two")]


def test_what_is_named_twice_is_refused(tmp_path):
    run(tmp_path / "a", loss="CE()")
    with pytest.raises(InputError, match=r"expected each run, study and file once, got .*a 2 times"):
        found_in(tmp_path, tmp_path / "a")


def test_a_study_shows_its_stored_numbers_and_draws_from_its_runs(tmp_path):
    run(tmp_path / "runs" / "CE-1", loss="CE()")
    Store(tmp_path, create=True).add(stored("CE", 1, run="runs/CE-1", protocol={"bins": 15}))
    (found,) = of_study(tmp_path)
    assert found.as_is.result["ece"] == 0.123
    assert found.as_is.result.suite.n == 300
    assert found.as_is.protocol == {"bins": 15}
    assert found.history


def test_a_study_whose_runs_are_gone_still_shows_its_numbers(tmp_path):
    Store(tmp_path, create=True).add(stored("CE", 1, settings={"recipe": {}}))
    (found,) = of_study(tmp_path)
    assert found.as_is.result.suite is None
    assert "Miscalibrated, overconfident (the ECE is above its noise floor): ECE 12.30 %" in conclusions([found])[0]
    write([found], tmp_path / "report.html")
    assert "12.30" in (tmp_path / "report.html").read_text()


def test_an_empty_study_is_refused(tmp_path):
    Store(tmp_path, create=True)
    with pytest.raises(InputError, match="no finished run yet"):
        of_study(tmp_path)


def test_pictures_survive_the_encoder():
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for shape in ((5, 7), (6, 4, 3)):
        picture = random.integers(0, 256, shape, dtype=np.uint8)
        assert np.array_equal(np.asarray(image.open(io.BytesIO(encode(picture)))), picture)
    large = data_address(np.zeros((500, 300), np.uint8))
    assert max(image.open(io.BytesIO(base64.b64decode(large.split(",")[1]))).size) <= LARGEST


def test_pictures_are_taken_in_the_order_of_the_rows(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for value in range(3):
        image.fromarray(np.full((4, 4, 3), 40 * value, np.uint8)).save(tmp_path / f"{value}.png")
    stack = np.stack([np.full((4, 4), 40 * value, np.uint8) for value in range(3)])
    np.savez(tmp_path / "stack.npz", images=stack, labels=np.arange(3))
    np.save(tmp_path / "stack.npy", stack)
    for source in (tmp_path, tmp_path / "stack.npz", tmp_path / "stack.npy"):
        assert of_files(source)(2).max() == 80
        assert of_files(source)(3) is None
    with pytest.raises(InputError, match="contains no pictures"):
        of_files(tmp_path / "absent.txt")


def test_a_file_of_pickled_pictures_is_refused(tmp_path):
    np.save(tmp_path / "bad.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot read pictures"):
        of_files(tmp_path / "bad.npy")


def test_a_page_of_200_runs_stays_under_six_megabytes(folder, tmp_path):
    """A hundred classes, a hundred epochs, mistakes with pictures: 40 methods, five seeds."""
    wide = subject(folder, name="many.npz", n=3000, classes=100)
    picture = data_address(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    one = of_run(run(tmp_path / "run", n=20), replicates=0)
    epochs = [{**row, "val/logit_gap": 12.3456, "val/regulariser_active": 0.98765} for row in one.history]
    whole = replace(wide, history=tuple(epochs * 20), settings=one.settings, environment=one.environment)
    many = [
        named(
            replace(whole, pictures={mistake.unit: f"{picture}{i}" for mistake in wide.mistakes}),
            method=f"ACLS(margin={i // 5}.0, lambda1=0.05)",
            seed=i % 5,
        )
        for i in range(200)
    ]
    text = render(many, title="200 runs")
    assert len(page_data(text)["subjects"]) == 200
    assert len(text.encode()) < 6_000_000


def test_the_page_says_from_which_confidence_on_to_accept(folder, overconfident):
    decision = overconfident.as_is.result.decide(0.1)
    assert decision.threshold is not None
    page = render([overconfident], title="one", max_error=0.1)
    assert f"<li>{decision}</li>" in page
    assert "Accept automatically" not in render([overconfident], title="one")
    both = decisions([overconfident, replace(overconfident, states=(stored("other", 1),))], 0.1)
    assert both[0] == f"{overconfident.title}: {decision}"
    assert both[1].startswith("other, seed 1: no threshold was chosen: a stored result has no confidences")


def test_the_command_and_python_put_the_decision_on_the_page(tmp_path, capsys):
    p = predictions(n=2000)
    decision = evaluate(p).decide(0.05)
    p.save(tmp_path / "p.npz")
    out = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "p.npz"), "--out", str(out), "--max-error", "5%", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decisions"] == [str(decision)]
    assert str(decision) in out.read_text()
    write_report(tmp_path / "own.html", p.scores, p.labels, "logits", max_error=0.05)
    assert str(decision) in (tmp_path / "own.html").read_text()
