"""A plain loop with `epochs` does what calling the four hooks by hand does."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from acls.data.indexed import Indexed, KeptSampler
from acls.data.synthetic import points
from acls.errors import InputError
from acls.integrations.loop import epochs
from acls.losses import ACLS, CRL, AdaFocal, CaPE, Epoch, Patra
from tests.processes import together

X, Y, _ = points(60, seed=5)
TRAIN, VAL = TensorDataset(X[:40], Y[:40]), TensorDataset(X[40:], Y[40:])
LOSSES = {
    "ACLS": lambda: ACLS(margin=1.0),
    "ACLS with ranking": lambda: ACLS(condition="ranking"),
    "CRL": CRL,
    "CaPE": CaPE,
    "AdaFocal": AdaFocal,
    "Patra": Patra,
}


def _step(model, optimizer, loss, x, y, index):
    optimizer.zero_grad()
    logits = model(x)
    loss(logits, y, index=index).backward()
    optimizer.step()
    return logits.detach()


def _new():
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("name", LOSSES)
def test_remembers_as_by_hand(name):
    model, optimizer = _new()
    loss = LOSSES[name]()
    for _ in epochs(loss, model, 4, train_set=TRAIN, val_set=VAL):
        for batch in DataLoader(Indexed(TRAIN), batch_size=7):
            _step(model, optimizer, loss, *batch)
        with torch.no_grad():  # no training step
            loss(model(X[:7]), Y[:7], index=torch.arange(7))

    plain, optimizer = _new()
    by_hand = LOSSES[name]()
    by_hand.prepare(n_train=40, n_classes=4)

    def predict(split):
        x, y = (TRAIN if split == "train" else VAL).tensors
        with torch.no_grad():
            yield plain(x), y, torch.arange(len(y))

    for number in range(4):
        now = Epoch(number, 4, predict)
        by_hand.start_epoch(now)
        for x, y, index in DataLoader(Indexed(TRAIN), batch_size=7):
            by_hand.observe(_step(plain, optimizer, by_hand, x, y, index), y, index)
        by_hand.end_epoch(now)

    torch.testing.assert_close(model.weight, plain.weight)
    assert loss.state_dict().keys() == by_hand.state_dict().keys()
    for key, value in by_hand.state_dict().items():
        torch.testing.assert_close(loss.state_dict()[key], value, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", LOSSES)
def test_goes_on_from_a_saved_state_as_if_never_stopped(name):
    def train(loss, model, optimizer, stop=None, **more):
        for number in epochs(loss, model, 4, train_set=TRAIN, val_set=VAL, **more):
            if number == stop:
                break
            for batch in DataLoader(Indexed(TRAIN), batch_size=7):
                _step(model, optimizer, loss, *batch)

    whole, stopped, resumed = (_new() for _ in range(3))
    losses = [LOSSES[name]() for _ in range(3)]
    train(losses[0], *whole)
    train(losses[1], *stopped, stop=2)
    for new, old in ((resumed[0], stopped[0]), (losses[2], losses[1])):
        new.load_state_dict(old.state_dict())
    train(losses[2], *resumed, start=2)
    torch.testing.assert_close(resumed[0].weight, whole[0].weight)
    for key, value in losses[0].state_dict().items():
        torch.testing.assert_close(losses[2].state_dict()[key], value, msg=lambda text, key=key: f"{key}: {text}")


MEMORIES = {"CRL": CRL, "CaPE": CaPE, "AdaFocal": AdaFocal}


def _process(rank, world, folder):

    def train(loss, model, optimizer, *, start=0, stop=None):
        shared = DistributedDataParallel(model)
        for number in epochs(loss, shared, 4, train_set=TRAIN, val_set=VAL, start=start):
            if number == stop:
                break
            sampler = DistributedSampler(TRAIN, shuffle=False)
            for batch in DataLoader(Indexed(TRAIN), batch_size=5, sampler=sampler):
                _step(shared, optimizer, loss, *batch)

    for name, make in MEMORIES.items():
        whole, stopped, resumed = (_new() for _ in range(3))
        losses = [make() for _ in range(3)]
        train(losses[0], *whole)
        train(losses[1], *stopped, stop=2)
        if rank == 0:
            torch.save([stopped[0].state_dict(), losses[1].state_dict()], folder / "checkpoint.pt")
        dist.barrier()
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        resumed[0].load_state_dict(saved[0])
        losses[2].load_state_dict(saved[1])
        train(losses[2], *resumed, start=2)
        states = [
            {**model.state_dict(), **loss.state_dict()}
            for model, loss in ((whole[0], losses[0]), (resumed[0], losses[2]))
        ]
        torch.save(states, folder / f"{name}{rank}.pt")
        dist.barrier()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loop")
    together(_process, folder)
    return folder


@pytest.mark.parametrize("name", MEMORIES)
def test_two_processes_share_a_memory_that_a_checkpoint_restores(two_processes, name):
    (whole, resumed), (other, _) = (
        torch.load(two_processes / f"{name}{rank}.pt", weights_only=True) for rank in range(2)
    )
    assert len(whole) > 2, "a loss with memory has buffers"
    for key, value in whole.items():
        assert torch.equal(other[key], value), f"{key} differs between processes"
        torch.testing.assert_close(resumed[key], value, msg=lambda text, key=key: f"{key}: {text}")


def test_a_missing_validation_set_is_told():
    model, _ = _new()
    with pytest.raises(InputError, match="val_set="):
        list(epochs(AdaFocal(), model, 1, train_set=TRAIN))


def test_samples_are_numbered_in_tuples_and_dicts():
    assert Indexed([("a", 1), ("b", 0)])[1] == ("b", 0, 1)
    assert Indexed([{"x": "a"}])[0] == {"x": "a", "index": 0}
    with pytest.raises(InputError, match="got str"):
        Indexed(["a"])[0]


def test_the_sampler_draws_what_is_kept_in_a_new_order_each_epoch():
    loss = Patra()
    sampler = KeptSampler(TRAIN, loss)
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
    loss.prepare(n_train=40, n_classes=4)
    loss.kept[:30] = False
    assert sorted(sampler) == list(range(30, 40))
    assert len(sampler) == 10
