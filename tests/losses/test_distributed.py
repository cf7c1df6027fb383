"""Several processes that each see a share of the samples remember what one that sees them all does."""

import pytest
import torch

from acls.losses import ACLS, CRL, AdaFocal, CaPE, Epoch, Patra
from tests.contract.losses import N_TRAIN, inputs
from tests.processes import together

LOSSES = {
    "CRL": CRL,
    "ACLS with ranking": lambda: ACLS(condition="ranking"),
    "AdaFocal": AdaFocal,
    "CaPE": CaPE,
    "Patra": Patra,
}


def _train(make, rank, world):
    """Two epochs over batches whose sizes do not divide; a process takes every world-th sample of each.

    In the second one the first process alone is given samples to predict.
    """
    loss = make()
    loss.prepare(n_train=N_TRAIN, n_classes=5)
    z, y, _ = inputs(N_TRAIN, seed=3)

    def predict(split):
        mine = torch.arange(N_TRAIN if rank == 0 else 0) if number else torch.arange(rank, N_TRAIN, world)
        for part in mine.split(N_TRAIN):
            if len(part):
                yield z[part], y[part], part

    for number in (0, 3):
        now = Epoch(number=number, total=4, predict=predict)
        loss.start_epoch(now)
        for step in range(4):
            logits, target, index = (part[rank::world] for part in inputs(7, seed=step + 10 * number))
            loss.observe(logits, target, index)
        loss.end_epoch(now)
    return loss.state_dict()


def _process(rank, world, folder):
    states = {name: _train(make, rank, world) for name, make in LOSSES.items()}
    torch.save(states, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    together(_process, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", LOSSES)
def test_two_processes_remember_what_one_does(two_processes, name):
    alone = _train(LOSSES[name], 0, 1)
    assert alone, "a loss with memory has buffers"
    for process in two_processes:
        for key, value in alone.items():
            torch.testing.assert_close(process[name][key], value, msg=lambda text, key=key: f"{key}: {text}")
