"""The catalogue is the one list of metrics: what is computed is in it, and every view reads it."""

from __future__ import annotations

import pytest
import torch

from acls.metrics import Suite
from acls.metrics.catalogue import CATALOGUE, Metric, metric, names, selectable


def test_every_metric_that_a_suite_computes_is_in_the_catalogue() -> None:
    torch.manual_seed(0)
    suite = Suite.of(torch.randn(70, 7), torch.randint(7, (70,)), classwise=True, ace=True, confusion=True)
    computed = {name for name in suite.summary() if name != "n" and not name.endswith("_bound")}
    elsewhere = {"ece_floor", "miou_foreground", "temperature", "ece_after_temperature"}
    assert computed == CATALOGUE.keys() - elsewhere


def test_the_two_mean_ious_have_two_names_and_two_titles() -> None:
    assert metric("miou").title == "mIoU %"
    assert metric("miou_foreground").title == "foreground mIoU %"
    assert len({one.title for one in CATALOGUE.values()}) == len(CATALOGUE)


def test_metrics_that_need_label_maps_cannot_choose_a_checkpoint_of_a_classifier() -> None:
    assert set(selectable(maps=True)) - set(selectable(maps=False)) == {"miou", "miou_foreground"}
    assert "classwise_ece" not in selectable(maps=True)  # it is not computed after every epoch


def test_a_new_metric_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "new", Metric("new", "New", "a test", 1, "higher", "score"))
    assert names(1)[-1] == "new"
    assert metric("new").phrase(0.5) == "New 50.00 %"
    assert sorted([0.1, 0.9], key=lambda value: metric("new").sign * value) == [0.9, 0.1]
