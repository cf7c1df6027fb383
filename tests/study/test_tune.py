"""Tuning: the whole grid, the validation part only, and on after a break with what was under way."""

import json
import math
import shutil
import sqlite3
from dataclasses import replace

import pytest

from acls.cli import main
from acls.errors import InputError
from acls.recipes import load_recipe, save_recipe
from acls.study import tune as tuning
from acls.study.tune import Search, grid, parse_space, tune
from acls.train import loop
from tests.study.quick import HERE
from tests.train.quick import digits


def search(folder, space="margin=1|9", **changes):
    recipe = digits()
    recipe = replace(recipe, loss=replace(recipe.loss, name="ACLS"))
    return Search(folder, recipe, tuple(parse_space(space)), **changes)


@pytest.fixture
def breaks(monkeypatch):
    """Stop training for good in the second trial's last epoch, as Ctrl-C does; by a kill the trial stays as it was."""
    whole, begun = loop._train_epoch, []

    def stop(session, folder, at):
        begun.append(folder.path.name)
        if begun[-1] != begun[0] and at.epoch == 1:
            raise KeyboardInterrupt
        return whole(session, folder, at)

    monkeypatch.setattr(loop, "_train_epoch", stop)
    yield
    monkeypatch.setattr(loop, "_train_epoch", whole)


def numbers(found):
    """What must be the same of two searches: all but the numbers and the order of their trials."""
    return sorted((str(one.params), one.accuracy, one.ece, one.nll, one.epoch) for one in found.trials)


def test_a_grid_tries_every_point_once(tmp_path):
    found = tune(search(tmp_path, "margin=1|9,lambda1=0.1:0.2:0.1"), HERE)
    points = [tuple(one.params.values()) for one in found.trials]
    assert sorted(points) == [(1, 0.1), (1, 0.2), (9, 0.1), (9, 0.2)]


def test_the_test_part_is_never_evaluated(tmp_path, monkeypatch):
    """Neither by the runner's last step, nor by any evaluation of a part that is not the validation part."""
    evaluated = []
    whole = loop.evaluate
    monkeypatch.setattr(
        loop, "evaluate", lambda session, part: evaluated.append((session, part)) or whole(session, part)
    )
    tune(search(tmp_path), HERE)
    assert len(evaluated) == 4  # two trials of two epochs
    assert all(part is session.data.val for session, part in evaluated)
    assert not list(tmp_path.rglob("predictions"))
    assert not list(tmp_path.rglob("summary.json"))


def test_numbers_are_those_of_the_best_epoch_on_validation(tmp_path):
    found = tune(search(tmp_path), HERE)
    for one in found.trials:
        run = tmp_path / "trials" / search(tmp_path).name / f"{one.number:04d}"
        header, *rows = (run / "metrics.csv").read_text().split()
        row = dict(zip(header.split(","), rows[one.epoch - 1].split(","), strict=True))
        assert one.ece == pytest.approx(float(row["val/ece"]), rel=1e-5)
        assert one.accuracy == pytest.approx(float(row["val/accuracy"]), rel=1e-5)
        assert found.n == int(row["val/n"])


@pytest.mark.parametrize("killed", [False, True])
def test_a_search_goes_on_where_it_was_stopped_and_finds_the_same(tmp_path, monkeypatch, breaks, killed):
    part = search(tmp_path / "broken", "margin=1|5|9")
    with pytest.raises(KeyboardInterrupt):
        tune(part, HERE)
    if killed:  # then nobody told the storage
        with sqlite3.connect(part.folder / "tune.sqlite") as database:
            database.execute("UPDATE trials SET state = 'RUNNING' WHERE state = 'FAIL'")
    monkeypatch.undo()
    whole, epochs = loop._train_epoch, []

    def told(session, folder, at):
        epochs.append((folder.path.name, at.epoch))
        return whole(session, folder, at)

    monkeypatch.setattr(loop, "_train_epoch", told)
    found = tune(part, HERE)
    assert sorted(epochs) == [("0001", 1), ("0002", 0), ("0002", 1)]  # the first had ended, the second had one left
    assert found.failed == 0
    epochs.clear()
    assert tune(part, HERE) == found
    assert epochs == []
    assert numbers(found) == numbers(tune(search(tmp_path / "whole", "margin=1|5|9"), HERE))


def test_another_search_in_the_same_folder_has_numbers_of_its_own(tmp_path):
    tune(search(tmp_path / "shared", "optim.lr=0.01|0.02"), HERE)
    second = tune(search(tmp_path / "shared", "optim.lr=0.1|0.2"), HERE)
    assert second == tune(search(tmp_path / "alone", "optim.lr=0.1|0.2"), HERE)


def test_a_run_that_a_deleted_database_left_behind_is_not_another_trials(tmp_path):
    one, other = search(tmp_path / "mixed", "optim.lr=0.01|0.1"), search(tmp_path / "mixed", "optim.lr=0.1|0.01")
    tune(one, HERE)
    shutil.move(tmp_path / "mixed/trials" / one.name, tmp_path / "mixed/trials" / other.name)
    assert tune(other, HERE) == tune(search(tmp_path / "alone", "optim.lr=0.1|0.01"), HERE)


def test_a_trial_goes_on_although_the_data_was_moved(tmp_path, monkeypatch, breaks):
    with pytest.raises(KeyboardInterrupt):
        tune(search(tmp_path), HERE)
    monkeypatch.undo()
    for path in tmp_path.rglob("recipe.yaml"):
        stored = load_recipe(path)
        save_recipe(replace(stored, data=replace(stored.data, root="elsewhere")), path)
    assert len(tune(search(tmp_path), HERE).trials) == 2


def test_least_ece_wins_only_with_enough_accuracy(tmp_path):
    found = tune(search(tmp_path, "margin=1|9,optim.lr=0.1|0.0001"), HERE)
    assert found.floor == max(one.accuracy for one in found.trials) - tuning.ALLOWANCE
    assert found.best == min((one for one in found.trials if one.accuracy >= found.floor), key=lambda one: one.ece)
    none = tune(search(tmp_path, "margin=1|9,optim.lr=0.1|0.0001", floor=1.0), HERE)
    assert none.trials == found.trials
    assert none.best is None


def test_the_front_holds_what_no_trial_beats(tmp_path):
    found = tune(search(tmp_path, "margin=1|9,optim.lr=0.1|0.03|0.01"), HERE)
    points = {(one.accuracy, one.ece) for one in found.trials}
    beaten = {(a, e) for a, e in points if any(x >= a and y <= e and (x, y) != (a, e) for x, y in points)}
    assert {(one.accuracy, one.ece) for one in found.front} == points - beaten


def test_tpe_runs_so_many_trials_and_gives_hopeless_ones_up(tmp_path, monkeypatch):
    """Every trial after the third has a worse and worse NLL, so the median rule must stop some."""
    whole = loop.run_epochs

    def worse(session, folder, at):
        for row in whole(session, folder, at):
            row["val/nll"] += int(folder.path.name)
            yield row

    monkeypatch.setattr(tuning, "run_epochs", worse)
    found = tune(search(tmp_path, "margin=1:9", sampler="tpe", trials=6), HERE)
    assert len(found.trials) + found.pruned == 6
    assert found.pruned > 0
    assert len({one.params["margin"] for one in found.trials}) == len(found.trials)


def test_a_training_that_stops_is_counted_and_not_tried_again(tmp_path, monkeypatch):
    def stops(*_):
        raise tuning.TrainingStopped("the loss is no longer finite")

    monkeypatch.setattr(tuning, "_train", stops)
    assert tune(search(tmp_path), HERE).failed == 2
    assert tune(search(tmp_path), HERE).failed == 2


@pytest.mark.parametrize(
    ("space", "values"),
    [
        ("a=0:0.15:0.05", (0.0, 0.05, 0.1, 0.15)),
        ("a=0:1:0.3", (0.0, 0.3, 0.6, 0.9)),
        ("a=6|8.5|new", (6, 8.5, "new")),
        ("a=-1|1e-3", (-1, 0.001)),
    ],
)
def test_a_space_reads_as_it_is_written(space, values):
    assert parse_space(space)[0].values == values


def test_ranges_have_ends_and_a_scale():
    plain, log = parse_space("a=0:2, b=0.01:1:log")
    assert (plain.low, plain.high, plain.log) == (0, 2, False)
    assert (log.low, log.high, log.log) == (0.01, 1, True)
    assert math.isclose(len(list(grid(parse_space("a=0:1:0.5,b=1|2")))), 6)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("", "is empty"),
        ("margin", "expected a setting with its values"),
        ("margin=3:1:1", "low < high"),
        ("margin=0:1:log", "for log, low above 0"),
        ("margin=1:2:3:4", "expected a range"),
        ("margin=a:b", "expected a range"),
        ("margin=1|2,margin=3", "twice"),
        ("margn=1|2", "did you mean 'margin'"),
        ("optim.lrr=1|2", "did you mean"),
        ("margin=1:9", "--sampler tpe"),
    ],
)
def test_spaces_that_cannot_be_are_refused_before_training(tmp_path, space, message):
    with pytest.raises(InputError, match=message):
        tune(search(tmp_path, space), HERE)


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("margin=2|b", "margin='b'.*expected a finite number"),
        ("margin=2|nan", "margin='nan'.*expected a finite number"),
        ("margin=2|1e400", r"expected a (finite )?number.*got inf"),
        ("lambda1=0.1|0.2,margin=1|-1", r"expected a number in \[0, inf\), got -1"),
        ("margin=1|2,optim.lr=0.1|fast", "optim.lr: expected a number in .*, got 'fast'"),
    ],
)
def test_every_value_is_checked_before_anything_is_stored(tmp_path, space, sampler, message):
    with pytest.raises(InputError, match=message):
        tune(search(tmp_path / "new", space, sampler=sampler, trials=2), HERE)
    assert not (tmp_path / "new").exists()


def test_both_ends_of_a_range_are_checked(tmp_path):
    with pytest.raises(InputError, match=r"expected a number in \[0, inf\), got -1"):
        tune(search(tmp_path, "margin=-1:2", sampler="tpe"), HERE)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_the_folders_place_is_named(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot create the folder .*file.*another --out"):
        tune(search(tmp_path / "file" / below), HERE)


@pytest.mark.parametrize(
    "storage",
    ["sqlit:///foo", "nonsense", "sqlite:////there/is/no/such.db", "redis://localhost", "postgresql://localhost/none"],
)
def test_a_storage_that_cannot_be_used_is_named_with_the_way_out(tmp_path, storage):
    with pytest.raises(InputError, match=rf"cannot store the trials in {storage}: .*sqlite:///FILE") as caught:
        tune(search(tmp_path, storage=storage), HERE)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "tune.sqlite").write_text("something else " * 100)
    with pytest.raises(InputError, match=r"tune.sqlite: .*not a database"):
        tune(search(tmp_path), HERE)


def test_the_password_of_a_storage_is_not_told(tmp_path):
    with pytest.raises(InputError, match=r"sqlit://\*\*\*@host/name") as caught:
        tune(search(tmp_path, storage="sqlit://me:secret@host/name"), HERE)
    assert "secret" not in str(caught.value)


def test_the_command_prints_the_trials_and_draws_the_front(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("acls.study.engine.make_engine", lambda *_, **__: HERE)
    settings = ["--epochs", "2", "--limit-batches", "3", "--accelerator", "cpu", "--out", str(tmp_path)]
    command = ["tune", "digits_cnn", "--loss", "ACLS", "--space", "margin=1|9", *settings]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "margin=9" in out
    assert "acls train digits_cnn --loss ACLS --loss.margin" in " ".join(out.split())
    assert (tmp_path / "front.png").stat().st_size > 1000
    assert main([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["trials"]) == 2


def test_accuracy_floor_is_a_fraction(capsys):
    assert main(["tune", "digits_cnn", "--space", "margin=1|2", "--accuracy-floor", "95"]) == 2
    assert "--accuracy-floor: expected a number in [0, 1], got '95'" in capsys.readouterr().err
