"""A new metric is one tally and one line of the catalogue: all that shows metrics picks it up."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from acls import cli
from acls.metrics import TALLIES, Suite, Tally
from acls.metrics.batch import Batch
from acls.metrics.catalogue import CATALOGUE, Metric, names
from acls.metrics.tally import ratio
from acls.predictions import Predictions
from acls.report.results import results_table
from acls.results import Record, Result, evaluate
from acls.results.keeping import restore, save
from acls.study.ranking import rank
from docs.pages.catalogue import table
from tests.metrics.made import logits_and_labels


@pytest.fixture(autouse=True)
def margin(monkeypatch):
    """The mean gap between the largest probability and the next, which no other metric here is."""

    @dataclass(frozen=True, eq=False)
    class Margins(Tally):
        whole = True

        total: Tensor
        n: Tensor

        @classmethod
        def count(cls, batch: Batch) -> Margins:
            gaps = [p.topk(2).values for _, p in batch.probabilities()]
            first, second = torch.cat(gaps).double().unbind(1) if gaps else torch.zeros(2, 0, dtype=torch.float64)
            return cls(batch.sum(first - second), torch.tensor(len(batch)))

        def summary(self) -> dict[str, float]:
            return {"margin": ratio(self.total, self.n)}

    monkeypatch.setitem(TALLIES, "Margins", TALLIES.pop("Margins"))  # so that it goes when the test ends
    line = Metric("margin", "mean margin", "gap of the largest two", 1, "higher", "score", tally="Margins")
    monkeypatch.setitem(CATALOGUE, "margin", line)


def predictions(n: int = 300) -> Predictions:
    logits, labels = logits_and_labels(n, 5, seed=1)
    return Predictions(logits, labels, kind="logits")


def test_parts_of_a_data_set_add_up_and_triples_leave_it_out(tmp_path):
    p = predictions()
    whole = Suite.of(p.scores, p.labels)
    top = torch.softmax(p.scores.double(), 1).topk(2).values
    assert whole.summary()["margin"] == pytest.approx(float((top[:, 0] - top[:, 1]).mean()), abs=1e-6)
    parts = Suite.of(p.scores[:7], p.labels[:7]) + Suite.of(p.scores[7:], p.labels[7:])
    assert parts.all_reduce().to("cpu").summary()["margin"] == pytest.approx(whole.summary()["margin"])
    whole.save(tmp_path / "suite.safetensors")
    assert Suite.load(tmp_path / "suite.safetensors").summary() == whole.summary()
    confidence, predicted = p.top()
    assert "margin" not in Suite.of_triples(confidence, predicted, p.labels).summary()


def test_result_json_table_and_docs_show_it(tmp_path):
    found = evaluate(predictions(), detailed=True)
    value = found["margin"]
    assert found.as_json()["margin"] == value
    assert Result.from_json(json.loads(json.dumps(found.as_json())))["margin"] == value
    assert f"mean margin {100 * value:.2f} %" in repr(found)
    assert "mean margin" in found._repr_html_()
    assert found.to_frame().loc["margin", "value"] == value
    save(found, tmp_path / "kept", "key")
    assert restore(tmp_path / "kept", "key")["margin"] == value
    assert "mean margin" in table()


def test_tables_and_ranking_of_methods_show_it():
    p = predictions()
    scales = {"CE": 1.0, "ACLS": 3.0}
    records = []
    for method, scale in scales.items():
        for seed in range(3):
            found = evaluate(Predictions((scale + seed / 100) * p.scores, p.labels, kind="logits"))
            records.append(Record(method, seed, "none", found, {}))
    assert "mean margin %" in results_table(records, names(1)).header
    (ranked,) = rank(records, ["margin"])
    assert ranked.best == "ACLS"


def test_commands_show_it(tmp_path, capsys):
    file = tmp_path / "test.npz"
    predictions().save(file)
    assert cli.main(["evaluate", str(file)]) == 0
    assert "mean margin" in capsys.readouterr().out
    assert cli.main(["evaluate", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["margin"] > 0
