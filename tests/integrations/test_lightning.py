"""The callback in real Lightning training, on one and two processes."""

import os
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import acls
from acls.data.indexed import Indexed, KeptSampler
from acls.data.synthetic import points
from acls.errors import InputError
from acls.integrations.lightning import CalibrationCallback
from acls.losses import CRL, REGISTRY, AdaFocal, CaPE, Epoch, Patra
from acls.predictions import Predictions
from tests.processes import together

lightning = pytest.importorskip("lightning.pytorch")

N_TRAIN, N_VAL = 40, 31  # neither divides by two or by the batch
X, Y, _ = points(N_TRAIN + N_VAL, seed=5)
TRAIN, VAL = TensorDataset(X[:N_TRAIN], Y[:N_TRAIN]), TensorDataset(X[N_TRAIN:], Y[N_TRAIN:])


class Net(lightning.LightningModule):
    def __init__(self, loss, *, returns=False):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.loss, self.returns = nn.Linear(8, 4), loss, returns

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, i):
        x, y, index = batch
        return self.loss(self(x), y, index=index)

    def validation_step(self, batch, i):
        x, y = batch
        logits = self(x)
        if self.returns:
            return {"logits": logits, "target": y}
        return {"val_loss": self.loss(logits, y)}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder, callback, **changes):
    settings = {
        "max_epochs": 2, "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": folder,
    }  # fmt: skip
    return lightning.Trainer(callbacks=[callback], **(settings | changes))


def loaders(**of_val):
    return DataLoader(Indexed(TRAIN), batch_size=7), DataLoader(VAL, batch_size=7, **of_val)


@pytest.fixture(autouse=True)
def _no_hints():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(does not have many workers|logging interval|GPU available).*")
        yield


def test_logs_the_calibration_of_the_whole_validation_set(tmp_path):
    net, callback = Net(acls.ACLS(margin=1.0)), CalibrationCallback(save=tmp_path / "val.npz")
    run = trainer(tmp_path, callback)
    run.fit(net, *loaders())
    with torch.no_grad():
        expected = acls.Suite.of(net(VAL.tensors[0]), VAL.tensors[1]).summary()
    for name in ("ece", "aece", "nll", "brier", "accuracy"):
        assert float(run.callback_metrics[f"val/{name}"]) == pytest.approx(expected[name], abs=1e-5)
    assert 0 < float(run.callback_metrics["val/ece_floor"]) < 1
    saved = Predictions.load(tmp_path / "val.npz")
    torch.testing.assert_close(saved.scores, net(VAL.tensors[0]).detach())
    assert saved.labels.tolist() == VAL.tensors[1].tolist()
    assert saved.meta["loss"] == "ACLS(margin=1.0)"


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_loss_trains_inside_a_module(tmp_path, name):
    net = Net(acls.make_loss(name))  # validation_step calls the loss without an index
    before = net.net.weight.detach().clone()
    trainer(tmp_path, CalibrationCallback(), max_epochs=1, limit_train_batches=2).fit(net, *loaders())
    assert bool(torch.isfinite(net.net.weight).all())
    assert not torch.equal(net.net.weight, before)


@pytest.mark.filterwarnings("ignore:Total length of")  # pytest-xdist would import lightning to show it
def test_a_loss_that_needs_validation_data_says_so(tmp_path):
    with pytest.raises(InputError, match=r"AdaFocal\(\) uses a validation set .*: pass val_dataloaders to fit"):
        trainer(tmp_path, CalibrationCallback()).fit(Net(acls.AdaFocal()), loaders()[0], [])


def _by_hand(loss, epochs, n_train=N_TRAIN):
    """The four hooks in a plain loop over the same batches."""
    net = Net(loss)
    optimizer = net.configure_optimizers()
    loss.prepare(n_train=n_train, n_classes=4)

    def predict(split):
        x, y = (TRAIN if split == "train" else VAL).tensors
        with torch.no_grad():
            yield net(x), y, torch.arange(len(y))

    for number in range(epochs):
        now = Epoch(number, epochs, predict)
        loss.start_epoch(now)
        for x, y, index in DataLoader(Indexed(TRAIN), batch_size=7):
            optimizer.zero_grad()
            logits = net(x)
            loss(logits, y, index=index).backward()
            optimizer.step()
            loss.observe(logits.detach(), y, index)
        loss.end_epoch(now)
    return net


@pytest.mark.parametrize("make", [CRL, CaPE, AdaFocal, Patra], ids=lambda kind: kind.__name__)
def test_losses_with_memory_remember_as_in_a_plain_loop(tmp_path, make):
    net = Net(make(), returns=True)
    trainer(tmp_path, CalibrationCallback(), max_epochs=4).fit(net, *loaders())
    plain = _by_hand(make(), 4)
    assert net.loss.state_dict().keys() == plain.loss.state_dict().keys()
    assert net.loss.state_dict(), "a loss with memory has buffers"
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(net.state_dict()[key], value, msg=lambda text, key=key: f"{key}: {text}")


class Stop(lightning.Callback):
    """Ends training after two epochs of however many there were to be."""

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.should_stop = trainer.current_epoch == 1


def whole_and_resumed(folder, make, train, val, **changes):
    """A module trained for four epochs, and one that goes on after two from a checkpoint."""

    def run(**more):
        settings = {**changes, **more}
        callbacks = [CalibrationCallback(), *settings.pop("callbacks", [])]
        made = trainer(folder, callbacks[0], max_epochs=4, **settings)
        made.callbacks += callbacks[1:]
        return made

    whole, stopped, resumed = (Net(make(), returns=True) for _ in range(3))
    run().fit(whole, train, val)
    first = run(callbacks=[Stop()])
    first.fit(stopped, train, val)
    assert first.current_epoch == 2, "it stopped"
    first.save_checkpoint(folder / f"{make.__name__}.ckpt")
    run().fit(resumed, train, val, ckpt_path=folder / f"{make.__name__}.ckpt")
    return whole, resumed


@pytest.mark.parametrize("make", [CRL, CaPE, AdaFocal, Patra], ids=lambda kind: kind.__name__)
def test_memory_survives_a_checkpoint(tmp_path, make):
    whole, resumed = whole_and_resumed(tmp_path, make, *loaders())
    assert set(whole.loss.state_dict())
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[key], value, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("make", [CRL, CaPE, AdaFocal, Patra], ids=lambda kind: kind.__name__)
def test_a_checkpoint_loads_into_a_module_that_was_never_trained(tmp_path, make):
    """As one does to predict, or to go on with other data: `load_from_checkpoint` knows nothing of `prepare`."""
    run = trainer(tmp_path, CalibrationCallback(), max_epochs=2)
    trained = Net(make(), returns=True)
    run.fit(trained, *loaders())
    run.save_checkpoint(tmp_path / "end.ckpt")
    loaded = Net.load_from_checkpoint(tmp_path / "end.ckpt", loss=make(), returns=True)
    assert loaded.loss.state_dict().keys() == trained.loss.state_dict().keys() != set()
    for key, value in trained.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[key], value, rtol=0, atol=0)
    trainer(tmp_path, CalibrationCallback(), max_epochs=1).fit(loaded, *loaders())  # a new training, a new memory
    fresh = Net(make(), returns=True)
    fresh.net.load_state_dict(trained.net.state_dict())
    trainer(tmp_path, CalibrationCallback(), max_epochs=1).fit(fresh, *loaders())
    if make is not AdaFocal:  # whose gammas are no memory of samples: they go on
        for key, value in fresh.state_dict().items():
            torch.testing.assert_close(loaded.state_dict()[key], value, msg=lambda text, key=key: f"{key}: {text}")


def test_a_missing_index_is_told_with_the_way_out(tmp_path):
    class NoIndex(Net):
        def training_step(self, batch, i):
            return self.loss(self(batch[0]), batch[1])

    with pytest.raises(InputError, match="Indexed"):
        trainer(tmp_path, CalibrationCallback()).fit(NoIndex(Patra(), returns=True), *loaders())


def test_a_file_that_cannot_be_written_is_told_before_training():
    with pytest.raises(InputError, match=r"cannot write out/val\.txt: .*\.npz"):
        CalibrationCallback(save="out/val.txt")


def test_a_step_without_predictions_is_told_before_training(tmp_path):
    class Silent(Net):
        def validation_step(self, batch, i):
            return None

    net = Silent(acls.CE())
    before = net.net.weight.detach().clone()
    with pytest.raises(InputError, match=r"validation_step called no loss of acls\. .*return {"):
        trainer(tmp_path, CalibrationCallback()).fit(net, *loaders())
    assert torch.equal(net.net.weight, before), "found in the sanity check"


def test_pruned_samples_leave_training_with_the_sampler_and_are_warned_of_without(tmp_path):
    loss = Patra(prune_at=(0.5,), prune_fraction=0.25)
    seen = []

    class Noting(Net):
        def training_step(self, batch, i):
            seen.append((self.current_epoch, batch[2].tolist()))
            return super().training_step(batch, i)

    train = Indexed(TRAIN)
    kept = DataLoader(train, batch_size=7, sampler=KeptSampler(train, loss))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*still draws.*")
        trainer(tmp_path, CalibrationCallback()).fit(Noting(loss, returns=True), kept, loaders()[1])
    by_epoch = [sorted(i for epoch, batch in seen for i in batch if epoch == number) for number in range(2)]
    assert by_epoch[0] == list(range(N_TRAIN))
    assert by_epoch[1] == loss.keep_mask().nonzero()[:, 0].tolist()
    assert len(by_epoch[1]) == 30
    with pytest.warns(UserWarning, match="KeptSampler"):
        trainer(tmp_path, CalibrationCallback()).fit(Net(Patra(prune_at=(0.5,)), returns=True), *loaders())


def test_kept_rows_are_bounded_and_a_fair_sample(tmp_path):
    callback = CalibrationCallback(save=tmp_path / "val.npz", keep=4 * 10)
    trainer(tmp_path, callback, max_epochs=1).fit(Net(acls.CE()), *loaders())
    saved = Predictions.load(tmp_path / "val.npz")
    assert len(saved) == 10
    assert callback.last.suite.n == N_VAL, "metrics count all"


def test_dense_maps_count_pixels_and_leave_out_the_ignored(tmp_path):
    class Pixels(Net):
        def training_step(self, batch, i):
            return self.validation_step(batch, i)["val_loss"]

        def forward(self, x):
            return self.net(x.movedim(1, -1)).movedim(-1, 1)

    maps = torch.randn(5, 8, 3, 3), torch.randint(0, 4, (5, 3, 3))
    maps[1][0, 0] = 255
    loader = DataLoader(TensorDataset(*maps), batch_size=2)
    callback = CalibrationCallback(save=tmp_path / "val.npz")
    trainer(tmp_path, callback, max_epochs=1).fit(Pixels(acls.CE(ignore_index=255)), loader, loader)
    assert callback.last.suite.n == 5 * 9 - 3
    assert Predictions.load(tmp_path / "val.npz").image.bincount().tolist() == [6, 9, 9, 9, 9]


def _process(rank, world, folder):
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511",
    }  # fmt: skip
    for name, sampler in (("lightning", None), ("distributed", DistributedSampler(VAL, world, rank, shuffle=True))):
        net, callback = Net(CRL(), returns=True), CalibrationCallback(save=folder / f"{name}.npz")
        run = trainer(
            folder, callback, devices=2, strategy="ddp", max_epochs=1, use_distributed_sampler=sampler is None
        )
        train = DataLoader(Indexed(TRAIN), batch_size=4, sampler=DistributedSampler(TRAIN, world, rank, shuffle=False))
        run.fit(net, train, DataLoader(VAL, batch_size=4, sampler=sampler))
        logged = {key: float(value) for key, value in run.callback_metrics.items()}
        state = {key: value.clone() for key, value in net.state_dict().items()}
        torch.save({"logged": logged, "state": state}, folder / f"{name}{rank}.pt")
    train = DataLoader(Indexed(TRAIN), batch_size=4, sampler=DistributedSampler(TRAIN, world, rank, shuffle=False))
    val = DataLoader(VAL, batch_size=4)
    for make in (CRL, CaPE, AdaFocal):
        both = whole_and_resumed(folder, make, train, val, devices=2, strategy="ddp")
        states = [{key: value.clone() for key, value in net.state_dict().items()} for net in both]
        torch.save(states, folder / f"{make.__name__}{rank}.pt")
    # A sampler of the user's own that gives all samples to all processes: counted twice, and told.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = trainer(
            folder, CalibrationCallback(), devices=2, strategy="ddp", max_epochs=1, use_distributed_sampler=False
        )
        run.fit(Net(acls.CE()), *loaders())
    if rank == 0:
        (folder / "told.txt").write_text("\n".join(str(one.message) for one in caught))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lightning")
    together(_process, folder)
    return folder


@pytest.mark.parametrize("sampler", ["lightning", "distributed"])
def test_two_processes_count_each_sample_once(two_processes, sampler):
    ranks = [torch.load(two_processes / f"{sampler}{rank}.pt", weights_only=True) for rank in range(2)]
    assert ranks[0]["logged"] == ranks[1]["logged"]
    saved = Predictions.load(two_processes / f"{sampler}.npz")
    assert len(saved) == N_VAL, "the padding of the sampler is left out"
    net = Net(CRL(), returns=True)
    net.net.load_state_dict({key[4:]: value for key, value in ranks[0]["state"].items() if key.startswith("net.")})
    with torch.no_grad():
        logits = net(VAL.tensors[0])
    expected = acls.Suite.of(logits, VAL.tensors[1]).summary()
    for name in ("ece", "aece", "nll", "accuracy"):
        assert ranks[0]["logged"][f"val/{name}"] == pytest.approx(expected[name], abs=1e-5)
    assert torch.allclose(saved.scores.sort(0).values, logits.sort(0).values, atol=1e-6)
    if sampler == "lightning":
        assert saved.labels.tolist() == VAL.tensors[1].tolist(), "in the order of the samples"


def test_two_processes_share_the_memory(two_processes):
    """Both remember every sample's hits: those of the process that saw it."""
    ranks = [torch.load(two_processes / f"lightning{rank}.pt", weights_only=True)["state"] for rank in range(2)]
    for key, value in ranks[0].items():
        assert torch.equal(ranks[1][key], value), key
    assert int(ranks[0]["loss.history.epochs"]) == 1
    assert ranks[0]["loss.history.hits"][0::2].sum() > 0
    assert ranks[0]["loss.history.hits"][1::2].sum() > 0


@pytest.mark.parametrize("make", [CRL, CaPE, AdaFocal], ids=lambda kind: kind.__name__)
def test_two_processes_go_on_from_a_checkpoint_with_one_memory(two_processes, make):
    (whole, resumed), (other, _) = (
        torch.load(two_processes / f"{make.__name__}{rank}.pt", weights_only=True) for rank in range(2)
    )
    for key, value in whole.items():
        assert torch.equal(other[key], value), f"{key} differs between processes"
        torch.testing.assert_close(resumed[key], value, msg=lambda text, key=key: f"{key}: {text}")


def test_samples_counted_twice_are_told(two_processes):
    assert (
        f"validation counted {2 * N_VAL} samples of a data set of {N_VAL}" in (two_processes / "told.txt").read_text()
    )


def test_the_report_is_written_at_the_end(tmp_path):
    callback = CalibrationCallback(report=tmp_path / "report.html")
    trainer(tmp_path, callback, max_epochs=1).fit(Net(acls.CE()), *loaders())
    page = (tmp_path / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html")
    assert "noise floor" in page


def test_a_loss_without_memory_trains_on_a_stream(tmp_path):
    """ACLS has the hooks of a loss with memory, but needs them only with condition="ranking"."""

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([(X[i], Y[i], i) for i in range(14)])

    run = trainer(tmp_path, CalibrationCallback(), max_epochs=1)
    run.fit(Net(acls.ACLS(margin=1.0)), DataLoader(Stream(), batch_size=7), loaders()[1])
    with pytest.raises(InputError, match="known length"):
        trainer(tmp_path, CalibrationCallback(), max_epochs=1).fit(
            Net(CRL(), returns=True), DataLoader(Stream(), batch_size=7), loaders()[1]
        )
