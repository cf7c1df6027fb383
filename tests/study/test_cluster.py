"""A Ray cluster of two nodes, one of which does not see the study's folder: machines without a disk in common."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import torch

from acls.predictions import Predictions
from acls.study.cluster import Ray
from acls.study.runs import run_study
from acls.study.store import Store
from tests.study import jobs
from tests.study.quick import HERE, cells, timeless

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]
RAY = Path(sys.executable).parent / "ray"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The address, and a folder that the second node does not see, with one core on each node."""
    folder = tmp_path_factory.mktemp("mine")
    hide = f"mount -t tmpfs tmpfs {folder}"
    apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*apart, hide], check=False, capture_output=True).returncode:
        pytest.skip("this system lets nobody have folders of their own (unshare, mount)")
    spool = Path(f"/tmp/acls-{os.getpid()}")  # Ray's sockets need a short path
    port = 20000 + os.getpid() % 10000
    address = f"127.0.0.1:{port}"
    common = "--num-cpus=1 --disable-usage-stats --block"
    patch = pytest.MonkeyPatch()
    for name, value in {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }.items():  # fmt: skip
        patch.setenv(name, value)
    nodes = []
    try:
        for command in (
            f"{RAY} start --head --port={port} --temp-dir={spool} --include-dashboard=false {common}",
            f"{hide} && touch {folder}/apart && exec {RAY} start --address={address} {common}",
        ):
            nodes.append(
                subprocess.Popen([*apart, command] if "mount" in command else ["sh", "-c", f"exec {command}"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )  # fmt: skip
            _wait_for_nodes(address, len(nodes))
        yield address, folder
    finally:
        patch.undo()
        for node in reversed(nodes):
            node.terminate()
            node.wait()
        shutil.rmtree(spool, ignore_errors=True)


def _wait_for_nodes(address, count):
    code = f"import ray; ray.init({address!r}, logging_level='error'); print(sum(n['Alive'] for n in ray.nodes()))"
    for _ in range(10):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200)
        if done.stdout.strip() == str(count):
            return
        time.sleep(1)
    raise AssertionError(done.stderr)


def acls(*words, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "acls", *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def alone(function, *args):
    """Call in a process of its own, as Ray reads the token of a cluster once, when it is imported."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def spans(address, workers):
    return list(dict(Ray.make(workers, address).map(jobs.span, [0.3] * 4)).values())


def mapped(address, function, tasks):
    return dict(Ray.make(None, address).map(function, tasks))


def study(address, folder):
    return run_study(cells(folder), Ray.make(None, address))


def test_workers_are_the_cap_of_the_cluster(cluster):
    begun, ended = zip(*sorted(alone(spans, cluster[0], 1)), strict=True)
    assert all(end <= begin for end, begin in zip(ended, begun[1:], strict=False)), "one at a time on two nodes"
    begun, ended = zip(*sorted(alone(spans, cluster[0], None)), strict=True)
    assert any(end > begin for end, begin in zip(ended, begun[1:], strict=False)), "two by default, one a core"


def test_a_lost_worker_is_replaced(cluster, tmp_path):
    assert alone(mapped, cluster[0], jobs.die_once, [(str(tmp_path / "mark"), 5)]) == {0: 5}


def test_a_study_comes_home_from_a_node_that_does_not_see_its_folder(cluster):
    address, folder = cluster
    assert alone(study, address, folder / "ray") == []
    assert run_study(cells(folder / "here"), HERE) == []
    rows, expected = (timeless(Store(folder / name).rows()) for name in ("ray", "here"))
    assert rows.keys() == expected.keys()
    for key, row in rows.items():
        values, alone_here = (
            {name: one.value for name, one in result.estimates.items()} for result in (row.result, expected[key].result)
        )
        assert values
        assert values == pytest.approx(alone_here, abs=1e-6)
    for cell in cells(folder / "ray"):
        names = {str(path.relative_to(cell.place)) for path in cell.place.rglob("*") if path.is_file()}
        assert {"recipe.yaml", "summary.json", "metrics.csv", "predictions/test.safetensors"} <= names
        assert not any(len(name) > 30 for name in names if name.startswith(".")), "no proof is left"


def test_a_run_that_was_begun_here_goes_on_there(cluster):
    """Its checkpoint goes with the task: the epochs of before are not trained again."""
    address, folder = cluster
    tasks = [jobs.Counting(folder / f"count-{number}", 3) for number in range(4)]
    for task in tasks:
        task.place.mkdir()
        (task.place / "count").write_text("39")
        (task.place / "stale").write_text("goes away")
    found = alone(mapped, address, jobs.count_on, tasks)
    assert {count for count, _ in found.values()} == {42}
    assert {tasks[number].place == place for number, (_, place) in found.items()} == {False, True}, "both nodes worked"
    assert [(task.place / "count").read_text() for task in tasks] == ["42"] * 4
    assert not any((task.place / "stale").exists() for task in tasks)


def test_parts_are_counted_where_they_are_not(cluster):
    address, folder = cluster
    random = torch.Generator().manual_seed(0)
    for number in range(3):
        scores, labels = (
            torch.randn(50 + number, 4, generator=random),
            torch.randint(4, (50 + number,), generator=random),
        )
        Predictions(scores, labels, "logits").save(folder / f"part-{number}.parquet")
    options = ["evaluate", "part-*.parquet", "--json", "--bootstrap", "50"]
    alone = json.loads(acls(*options, cwd=folder))
    shared = json.loads(acls(*options, "--engine", "ray", "--address", address, cwd=folder))
    assert alone["n"] == shared["n"] == 153
    assert shared["ece"] == pytest.approx(alone["ece"], abs=1e-12)
