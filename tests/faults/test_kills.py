"""Processes killed at random moments: the run that goes on ends in the bits of one that nobody disturbed."""

import multiprocessing as mp
import os
import random
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from acls.recipes import LossOptions
from acls.study.engine import Local
from acls.study.runs import run_study
from acls.study.store import Store
from acls.train import fit, resume
from tests.study.quick import cells, timeless
from tests.train.quick import assert_same_runs, digits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
LIMIT = 600  # seconds for what takes a few


def recipe():
    """Memory of samples, an average of weights, dropout, two steps between states: all that must come back."""
    model = replace(digits().model, dropout=0.2)
    return digits(loss=LossOptions(name="CRL"), epochs=4, limit_batches=6, save_every=2, ema=0.9, model=model)


def trained(folder, rank, world, rendezvous):
    """One of the processes of a run: begins it, or goes on with it."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
        # What torchrun would have set; the process group itself is there already.
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ |= {"TORCHELASTIC_RUN_ID": "test"} | {name: str(value) for name, value in told.items()}
    if (folder / "recipe.yaml").exists():
        resume(folder, show=False)
    else:
        fit(recipe(), folder, show=False)


def studied(folder, workers):
    run_study(cells(folder, seeds=(1, 2), epochs=3, save_every=1), Local(workers=workers, threads=1))


@pytest.fixture(scope="module")
def processes():
    """Starts processes from one that has imported everything, so that a kill costs no import."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__, "lightning_fabric", "sklearn.datasets"])

    def start(function, *args):
        process = context.Process(target=function, args=args)
        process.start()
        return process

    return start


def begin(processes, folder, world):
    rendezvous = folder.with_name(f"rendezvous-{random.getrandbits(40)}")
    return [processes(trained, folder, rank, world, rendezvous) for rank in range(world)]


def ended(group):
    for process in group:
        process.join(LIMIT)
        assert process.exitcode == 0, process.exitcode


@pytest.mark.parametrize(("world", "kills"), [(1, 20), (2, 10)])
def test_a_run_killed_again_and_again_ends_in_the_same_bits(world, kills, processes, tmp_path):
    ended(begin(processes, tmp_path / "whole", world))
    draw, done, runs = random.Random(world), 0, 0
    while done < kills:
        folder, runs = tmp_path / f"broken-{runs}", runs + 1
        while done < kills:
            group = begin(processes, folder, world)
            group[0].join(draw.uniform(0, 3))
            if group[0].exitcode is not None:  # too late: the run is finished
                break
            draw.choice(group).kill()
            time.sleep(draw.uniform(0, 0.1))
            for process in group:  # what the death of another does not end, its user does
                process.kill()
                process.join()
            done += 1
        ended(begin(processes, folder, world))
        assert_same_runs(tmp_path / "whole", folder)
        assert not [path for path in folder.rglob(".*") if path.name != ".lock"], "a temporary file is left"
    print(f"{done} kills over {runs} runs of {world} process(es)")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_study_killed_again_and_again_ends_in_the_same_rows(workers, processes, tmp_path):
    ended([processes(studied, tmp_path / "whole", workers)])
    whole = Store(tmp_path / "whole").rows()
    draw, done, broken = random.Random(workers), 0, tmp_path / "broken"
    while done < 5:
        process = processes(studied, broken, workers)
        process.join(draw.uniform(1, 12))
        done += process.exitcode is None
        process.kill()
        process.join()
        if process.exitcode == 0:  # too late for the moment that was drawn: another study
            broken.rename(tmp_path / f"finished-{done}")
    ended([processes(studied, broken, workers)])
    assert len(whole) == 8
    assert timeless(Store(broken).rows()) == timeless(whole)
