"""The engines: the same results, dead workers replaced, nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from acls.cli import main
from acls.errors import InputError, WorkerLost
from acls.study.engine import TRIES, Engine, Local, cores, make_engine
from tests.processes import wait_for
from tests.study import jobs


def alive(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return open(f"/proc/{pid}/stat").read().split(")")[1].split()[0] != "Z"
    return False


def test_every_task_has_its_result_and_its_threads():
    results = dict(Local(workers=2, threads=1).map(jobs.square, [3, 4, 5]))
    assert results == {0: (3, 9, 1), 1: (4, 16, 1), 2: (5, 25, 1)}


def test_no_tasks_start_no_process():
    assert list(make_engine("local").map(jobs.square, [])) == []


def test_threads_are_the_cores_shared_out(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert make_engine("local").threads == 1
    assert make_engine("local", workers=1).threads == cores()
    assert make_engine("local", workers=10 * cores()).threads == 1


def test_the_users_number_of_threads_is_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    engine = make_engine("local", workers=1)
    assert engine.threads == 3
    assert dict(engine.map(jobs.threads, [None])) == {0: (3, "3")}
    assert dict(Local(workers=1, threads=2).map(jobs.threads, [None])) == {0: (2, "3")}


@pytest.mark.parametrize(("devices", "shares"), [(2, {"4,5", "6,7"}), (3, {"4,5,6"}), (4, {"4,5,6,7"})])
def test_a_task_on_several_gpus_has_its_own(monkeypatch, devices, shares):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    engine = replace(make_engine("local"), devices=devices)
    assert engine.at_once == 4 // devices
    found = dict(engine.map(jobs.visible, [0] * len(shares))).values()
    assert set(found) == {(share, devices) for share in shares}


def test_a_killed_worker_is_replaced_and_its_task_tried_again(tmp_path):
    tasks = [(str(tmp_path / str(number)), number) for number in range(3)]
    assert dict(Local(workers=2, threads=1).map(jobs.die_once, tasks)) == {0: 0, 1: 1, 2: 2}


def test_a_task_that_always_kills_its_worker_is_given_up():
    with pytest.raises(WorkerLost, match=rf"started {TRIES} times.*signal 9"):
        list(Local(workers=1, threads=1).map(jobs.die, [0]))


@pytest.fixture
def tune_with(tmp_path, monkeypatch):
    """Run `acls tune` with an engine that raises."""

    def run(error, *options):
        class Raises(Engine):
            def map(self, function, tasks):
                raise error

        monkeypatch.setattr("acls.study.engine.make_engine", lambda *_, **__: Raises(workers=1, threads=1))
        return main(["tune", "digits_cnn", "--loss", "ACLS", "--space", "margin=1|9", "--out", str(tmp_path), *options])

    return run


def test_the_command_line_says_in_one_line_that_workers_died_and_how_to_go_on(tune_with, capsys):
    assert tune_with(WorkerLost("task 1 was started 3 times; fewer --workers may help")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("acls tune: task 1 was started 3 times; fewer --workers may help")
    assert "Run the same command again" in line


def test_errors_of_the_program_itself_show_their_traceback_on_request(tune_with, capsys):
    assert tune_with(RuntimeError("a bug"), "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "error", "text"), [(jobs.refuse, InputError, "7 will not do"), (jobs.end_of_file, EOFError, "own")]
)
def test_what_a_task_raises_is_raised_with_the_workers_traceback(job, error, text):
    with pytest.raises(error, match=text) as caught:
        list(Local(workers=1, threads=1).map(job, [7]))
    assert job.__name__ in str(caught.value.__cause__)


@pytest.fixture
def ctrl_c():
    """SIGINT as a terminal's: processes that a script starts in the background ignore it, and so do their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_who_stops_interrupts_the_tasks_which_save_their_state(tmp_path, ctrl_c):
    def interrupt():
        wait_for((tmp_path / "begun").exists)
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C

    with closing(Local(workers=2, threads=1).map(jobs.save_when_stopped, [str(tmp_path)])) as results:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            next(results)
    assert (tmp_path / "saved").exists()


def test_workers_end_with_their_parent_even_by_kill(tmp_path):
    code = (
        "import sys; from acls.study.engine import Local; from tests.study import jobs\n"
        "if __name__ == '__main__': list(Local(workers=2, threads=1).map(jobs.sleep, [sys.argv[1]] * 2))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    parent.kill()
    parent.wait()
    workers = [int(path.name) for path in tmp_path.iterdir()]
    wait_for(lambda: not any(alive(pid) for pid in workers))


def test_ray_and_processes_give_the_same_results(tmp_path):
    """Bits of sums, an error, killed workers: on one Ray, as it takes seconds to start."""
    library = pytest.importorskip("ray")
    local, ray = (make_engine(name, workers=2) for name in ("local", "ray"))
    assert local.threads == ray.threads
    library.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        assert dict(ray.map(jobs.random_walk, [1, 2, 3])) == dict(local.map(jobs.random_walk, [1, 2, 3]))
        with pytest.raises(InputError, match="7 will not do"):
            list(ray.map(jobs.refuse, [7]))
        assert dict(ray.map(jobs.die_once, [(str(tmp_path / "mark"), 5)])) == {0: 5}
        with pytest.raises(WorkerLost, match=f"started {TRIES} times"):
            list(ray.map(jobs.die, [0]))
    finally:
        library.shutdown()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "lokal"}, "did you mean 'local'"),
        ({"workers": 0}, "expected 1 or more, got 0"),
        ({"address": "auto"}, "--engine ray"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        make_engine(**settings)
