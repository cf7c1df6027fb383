"""The store: rows that are whole or absent, and one study a folder."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from acls.errors import InputError
from acls.metrics.estimates import Estimate
from acls.metrics.significance import Floor
from acls.results import Result
from acls.study.store import Row, Store

NUMBER = Estimate(0.05, 0.045, 0.03, 0.07)
RESULT = Result(540, {"ece": NUMBER, "accuracy": Estimate(0.9)}, {"ece": Floor(0.01, 0.005, 0.02)}, p=0.01)
ROW = Row(
    method="ACLS(margin=6.0)",
    seed=1,
    recipe="digits_cnn",
    posthoc="none",
    split="test",
    result=RESULT,
    protocol={"bins": 15, "edges": "(lo, hi]"},
    seconds=1.5,
    run="runs/ACLS-1",
    settings={"loss": {"margin": 6.0}},
)

HOLD = """
import sys, time
from acls.study.store import Store
with Store(sys.argv[1], create=True).lock():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "held"
    yield process
    process.kill()
    process.wait()


def test_rows_come_back_as_they_went_in(tmp_path):
    other = replace(ROW, posthoc="Temperature", result=replace(RESULT, estimates={"ece": Estimate(0.05)}, p=None))
    Store(tmp_path, create=True).add(ROW, other)
    assert Store(tmp_path).rows() == [ROW, other]


def test_a_cell_has_one_row(tmp_path):
    store = Store(tmp_path, create=True)
    store.add(ROW)
    store.add(replace(ROW, seconds=9.0))
    assert [row.seconds for row in store.rows()] == [9.0]


def test_the_same_cell_under_another_protocol_is_another_row(tmp_path):
    store = Store(tmp_path, create=True)
    store.add(ROW, replace(ROW, protocol={"bins": 10, "edges": "(lo, hi]"}))
    assert len(store.rows()) == 2


def test_rows_are_added_all_or_none(tmp_path):
    store = Store(tmp_path, create=True)
    with pytest.raises(InputError, match=r"study\.sqlite"):
        store.add(replace(ROW, seed=2), replace(ROW, seed=3, run=None))
    assert store.rows() == []


def test_what_is_not_a_number_is_absent(tmp_path):
    store = Store(tmp_path, create=True)
    estimates = {**RESULT.estimates, "auroc": Estimate(math.nan), "nll": Estimate(math.inf, math.inf)}
    store.add(replace(ROW, result=replace(RESULT, estimates=estimates)))
    stored = store.rows()[0].result
    assert stored.get("auroc") is None
    assert stored.get("nll") is None
    assert stored.estimates["ece"] == NUMBER


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"not the folder of a study"):
        Store(tmp_path)


def test_another_file_under_the_name_is_refused(tmp_path):
    (tmp_path / "study.sqlite").write_text("this is no database at all, but long enough to look at")
    with pytest.raises(InputError, match=r"cannot use .*study\.sqlite"):
        Store(tmp_path)


def test_a_second_study_is_refused_with_the_process_that_holds_the_folder(tmp_path, holder):
    with pytest.raises(InputError, match=rf"in use by process {holder.pid} on .*--wait"), Store(tmp_path).lock():
        pass


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with Store(tmp_path).lock():
        assert str(os.getpid()) in (tmp_path / "study.lock").read_text()


def test_who_waits_gets_the_folder_when_it_is_free(tmp_path, holder):
    code = HOLD.replace(".lock()", ".lock(wait=True)").replace("time.sleep(600)", "")
    waiting = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(timeout=0.5)
    holder.kill()
    assert waiting.communicate()[0].strip() == "held"


def test_writers_at_once_lose_no_row(tmp_path):
    Store(tmp_path, create=True)
    code = (
        "import sys; from dataclasses import replace; from tests.study.test_store import ROW\n"
        "from acls.study.store import Store\n"
        "for seed in range(20): Store(sys.argv[1]).add(replace(ROW, seed=seed, method=sys.argv[2]))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in ("A", "B")]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(Store(tmp_path).rows()) == 40
    with sqlite3.connect(tmp_path / "study.sqlite") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
