"""The adapters in the real Trainer, with tiny models built from a config: nothing is downloaded."""

import os

import pytest
import torch
from torch.utils.data import Subset

import acls
from acls.data.indexed import Indexed
from acls.errors import InputError
from acls.integrations.transformers import CalibrationCallback, compute_loss_func, compute_metrics
from acls.losses import CRL, AdaFocal, CaPE
from acls.predictions import Predictions
from tests.processes import together

transformers = pytest.importorskip("transformers")

TOKENS, LENGTH, CLASSES = 20, 6, 3
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Sentences(torch.utils.data.Dataset):
    """Random tokens; the label of a sentence is how its first token divides by three."""

    def __init__(self, n, task="sequence"):
        random = torch.Generator().manual_seed(n)
        self.ids, self.task = torch.randint(3, TOKENS, (n, LENGTH), generator=random), task

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids = self.ids[i]
        label = int(ids[0]) % CLASSES
        if self.task == "tokens":
            labels = ids % CLASSES
            labels[i % LENGTH] = -100
            return {"input_ids": ids, "labels": labels}
        if self.task == "choice":
            options = ids.repeat(CLASSES, 1)
            options[:, 0] = torch.where(torch.arange(CLASSES) == label, 3, 4)
            return {"input_ids": options, "labels": label}
        if self.task == "answer":
            full = torch.cat([ids, torch.tensor([label])])  # tokens 0, 1 and 2 are the answers
            return {"input_ids": full, "labels": torch.where(torch.arange(LENGTH + 1) == LENGTH, full, -100)}
        return {"input_ids": ids, "labels": label}


def model(task="sequence"):
    torch.manual_seed(0)
    if task == "answer":
        shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": TOKENS}
        shape |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0, pad_token_id=0)
        return transformers.GPT2LMHeadModel(config)
    kinds = {"sequence": "Sequence", "tokens": "Token"}
    config = transformers.BertConfig(
        **SMALL, **NO_DROPOUT, vocab_size=TOKENS, max_position_embeddings=16, num_labels=CLASSES
    )
    name = "BertForMultipleChoice" if task == "choice" else f"BertFor{kinds[task]}Classification"
    return getattr(transformers, name)(config)


def trainer(folder, net, loss, *, task="sequence", metrics=None, callbacks=(), train=None, **changes):
    settings = {
        "output_dir": str(folder), "num_train_epochs": 1, "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8, "learning_rate": 1e-2, "report_to": [], "disable_tqdm": True, "use_cpu": True,
        "save_strategy": "no", "logging_strategy": "no", "eval_strategy": "epoch", "seed": 0,
    }  # fmt: skip
    return transformers.Trainer(
        net,
        transformers.TrainingArguments(**(settings | changes)),
        train_dataset=Sentences(40, task) if train is None else train,
        eval_dataset=Sentences(21, task),
        compute_loss_func=loss,
        compute_metrics=metrics,
        callbacks=list(callbacks),
    )


ANSWERS = {"answer": [0, 1, 2]}


@pytest.mark.parametrize("task", ["sequence", "tokens", "choice", "answer"])
def test_trains_and_measures(tmp_path, task):
    answers = ANSWERS.get(task)
    loss, metrics = compute_loss_func(acls.ACLS(margin=2.0), answers=answers), compute_metrics(answers=answers)
    net = model(task)
    callback = CalibrationCallback(loss, metrics=metrics, save=tmp_path / "val.npz")
    run = trainer(tmp_path, net, loss, task=task, metrics=metrics, callbacks=[callback], num_train_epochs=6)
    before = run.evaluate(run.train_dataset)["eval_loss"]
    run.train()
    assert run.evaluate(run.train_dataset)["eval_loss"] < before
    after = run.evaluate()
    saved = Predictions.load(tmp_path / "val.npz")
    expected = acls.Suite.of(saved.scores, saved.labels).summary()
    for name in ("accuracy", "ece", "aece", "nll"):
        assert after[f"eval_{name}"] == pytest.approx(expected[name], abs=1e-6)
    assert 0 < after["eval_ece_floor"] < 1
    assert (len(saved), saved.n_classes) == (21 * (LENGTH - 1) if task == "tokens" else 21, CLASSES)
    if task != "tokens":
        assert saved.labels.tolist() == [int(ids[0]) % CLASSES for ids in Sentences(21).ids]


@pytest.mark.parametrize("task", ["sequence", "tokens", "choice", "answer"])
def test_the_report_of_the_last_evaluation_is_written_when_training_ends(tmp_path, task):
    answers = ANSWERS.get(task)
    loss, metrics = compute_loss_func(acls.ACLS(margin=2.0), answers=answers), compute_metrics(answers=answers)
    page, data = tmp_path / "made" / "report.html", tmp_path / "made" / "val.npz"
    callback = CalibrationCallback(loss, metrics=metrics, save=data, report=page)
    seen = []

    class Looking(transformers.TrainerCallback):
        def on_evaluate(self, *given, **_):
            seen.append((data.exists(), page.exists()))

    run = trainer(
        tmp_path, model(task), loss, task=task, metrics=metrics, callbacks=[callback, Looking()], num_train_epochs=2,
        batch_eval_metrics=True,
    )  # fmt: skip
    run.train()
    assert seen == [(True, False)] * 2, "predictions after each evaluation, the report at the end"
    text = page.read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html")
    assert "noise floor" in text
    assert "ACLS(margin=2.0)" in text
    saved = Predictions.load(data)
    assert saved.meta == {"loss": "ACLS(margin=2.0)", "step": "10", "part": "val"}
    n = 21 * (LENGTH - 1) if task == "tokens" else 21
    assert len(saved) == n
    assert f"{100 * acls.Suite.of(saved.scores, saved.labels).summary()['ece']:.2f}" in text
    assert not [left for left in page.parent.iterdir() if left not in (page, data)], "no temporary file is left"


def test_the_report_needs_no_loss_of_ours(tmp_path):
    metrics = compute_metrics()
    callback = CalibrationCallback(metrics=metrics, report=tmp_path / "report.html")
    trainer(tmp_path, model(), None, metrics=metrics, callbacks=[callback]).train()
    assert "noise floor" in (tmp_path / "report.html").read_text(encoding="utf-8")


class Stop(transformers.TrainerCallback):
    """Ends training after two epochs."""

    def on_epoch_end(self, args, state, control, **_):
        control.should_training_stop = round(state.epoch) == 2


def remembering(folder, make, **changes):
    """A run of four epochs that saves each, with a loss that has a memory."""
    loss, net = compute_loss_func(make()), model()
    callback = CalibrationCallback(loss, val_dataset=Sentences(21))
    settings = {"num_train_epochs": 4, "remove_unused_columns": False, "save_strategy": "epoch", "eval_strategy": "no"}
    train = Indexed(Subset(Sentences(40), range(32)))
    return trainer(folder, net, loss, callbacks=[callback], train=train, **(settings | changes)), net, loss.loss


def whole_and_resumed(folder, make, **changes):
    """Weights and memory of a run of four epochs, and of one that went on after two."""
    runs = [remembering(folder / name, make, **changes) for name in ("whole", "parts", "parts")]
    runs[0][0].train()
    runs[1][0].add_callback(Stop())
    runs[1][0].train()
    assert round(runs[1][0].state.epoch) == 2, "it stopped"
    runs[2][0].train(resume_from_checkpoint=True)
    return [{**net.state_dict(), **loss.state_dict()} for _, net, loss in (runs[0], runs[2])]


@pytest.mark.parametrize("make", [CRL, CaPE, AdaFocal], ids=lambda kind: kind.__name__)
def test_memory_survives_a_checkpoint(tmp_path, make):
    whole, resumed = whole_and_resumed(tmp_path, make)
    assert set(make().state_dict()) <= set(whole)
    _assert_same(whole, resumed)
    if make is CRL:
        assert int(resumed["history.epochs"]) == 4
        for file in (tmp_path / "parts").rglob("acls_loss.safetensors"):
            file.unlink()
        forgetful, _, _ = remembering(tmp_path / "parts", make, num_train_epochs=5)
        with pytest.warns(UserWarning, match="starts with an empty memory"):
            forgetful.train(resume_from_checkpoint=True)


def _trained(folder, task, loss, **changes):
    net = model(task)
    trainer(folder, net, loss, task=task, optim="sgd", eval_strategy="no", max_grad_norm=0, **changes).train()
    return net.state_dict()


def _assert_same(one, other):
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("task", ["sequence", "tokens", "answer"])
def test_cross_entropy_of_acls_is_the_models_own(tmp_path, task):
    """Shift, ignored labels and the mean over labels are those of the library."""
    answers = range(TOKENS) if task == "answer" else None
    own = _trained(tmp_path, task, None)
    _assert_same(own, _trained(tmp_path, task, compute_loss_func(acls.CE(), answers=answers)))
    assert any(not torch.equal(value, own[name]) for name, value in model(task).state_dict().items()), "it trained"


@pytest.mark.parametrize("task", ["sequence", "tokens", "answer"])
def test_accumulated_batches_train_as_one_large_one(tmp_path, task):
    """40 samples in batches of 16: the last one is 8, a single part of it."""
    loss = compute_loss_func(acls.ACLS(margin=0.1), answers=ANSWERS.get(task))
    parts = _trained(tmp_path, task, loss, gradient_accumulation_steps=2)
    _assert_same(_trained(tmp_path, task, loss, per_device_train_batch_size=16), parts)


def test_evaluation_by_batches_gives_the_same_numbers_in_bounded_memory(tmp_path):
    loss = compute_loss_func(acls.CE())
    whole, batched = (
        trainer(tmp_path, model(), loss, metrics=compute_metrics(), batch_eval_metrics=by_batch).evaluate()
        for by_batch in (False, True)
    )
    for name in ("eval_accuracy", "eval_ece", "eval_aece", "eval_nll", "eval_ece_floor"):
        assert batched[name] == pytest.approx(whole[name], abs=1e-6)


@pytest.mark.parametrize("make", [CRL, CaPE, AdaFocal], ids=lambda kind: kind.__name__)
def test_losses_with_memory_remember(tmp_path, make):
    loss = compute_loss_func(make())
    callback = CalibrationCallback(loss, val_dataset=Sentences(21))
    trainer(
        tmp_path, model(), loss, callbacks=[callback], train=Indexed(Sentences(40)), remove_unused_columns=False,
        num_train_epochs=2, metrics=compute_metrics(), gradient_accumulation_steps=2,
    ).train()  # fmt: skip
    if make is CRL:
        history = loss.loss.history
        assert int(history.epochs) == 2
        assert 0 < float(history.hits.sum()) <= 2 * 40
        assert float(history.hits.max()) <= 2, "each sample is seen once an epoch, and evaluation is not counted"
    elif make is CaPE:
        assert loss.loss.targets.shape == (40, CLASSES)
        torch.testing.assert_close(loss.loss.targets.sum(1), torch.ones(40))
    else:
        assert not torch.equal(loss.loss.gammas, make().gammas)


def test_what_is_missing_is_told_with_the_way_out(tmp_path):
    loss = compute_loss_func(CRL())
    with pytest.raises(InputError, match="pass index="):
        trainer(tmp_path, model(), loss, callbacks=[CalibrationCallback(loss)]).train()
    loss = compute_loss_func(AdaFocal())
    with pytest.raises(InputError, match="val_dataset="):
        trainer(tmp_path, model(), loss, callbacks=[CalibrationCallback(loss)]).train()
    with pytest.raises(InputError, match="metrics = compute_metrics"):
        CalibrationCallback(loss, save=tmp_path / "val.npz")
    with pytest.raises(InputError, match=r"\.npz"):
        CalibrationCallback(loss, metrics=compute_metrics(), save=tmp_path / "val.txt")
    with pytest.raises(InputError, match="two different token ids"):
        compute_loss_func(acls.CE(), answers=[5])
    with pytest.raises(InputError, match="reduction="):
        compute_loss_func(acls.CE(reduction="sum"))


def test_answers_are_found_wherever_they_are():
    logits, labels = torch.randn(2, 5, TOKENS), torch.full((2, 5), -100)
    labels[0, 3], labels[1, 1], labels[1, 2] = 7, 4, 9  # 9 is no answer
    z, y = compute_loss_func(acls.CE(), answers=[4, 7]).layout({"logits": logits}, labels)
    assert torch.equal(z, torch.stack([logits[0, 2, [4, 7]], logits[1, 0, [4, 7]]]))
    assert y.tolist() == [1, 0]


def _process(rank, world, folder):
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "localhost", "MASTER_PORT": "29512",
    }  # fmt: skip
    loss, metrics = compute_loss_func(CRL()), compute_metrics()
    callback = CalibrationCallback(loss, metrics=metrics, save=folder / "val.npz")
    net = model()
    run = trainer(
        folder, net, loss, metrics=metrics, callbacks=[callback], train=Indexed(Subset(Sentences(40), range(32))),
        remove_unused_columns=False, batch_eval_metrics=True, per_device_train_batch_size=4,
    )  # fmt: skip
    run.train()
    torch.save(
        {"state": net.state_dict(), "hits": loss.loss.history.hits, "n": metrics.last.suite.n}, folder / f"{rank}.pt"
    )
    for make in (CRL, CaPE, AdaFocal):
        both = whole_and_resumed(folder / make.__name__, make, per_device_train_batch_size=4)
        torch.save(both, folder / f"{make.__name__}{rank}.pt")


@pytest.mark.slow
def test_two_processes_remember_count_each_sample_once_and_go_on_from_a_checkpoint(tmp_path):
    together(_process, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert torch.equal(first["hits"], second["hits"])
    assert 0 < float(first["hits"].sum()) <= 32
    assert float(first["hits"].max()) <= 1
    assert first["n"] == second["n"] == 21
    net = model()
    net.load_state_dict(first["state"])
    with torch.no_grad():
        expected = net.eval()(input_ids=Sentences(21).ids).logits
    torch.testing.assert_close(Predictions.load(tmp_path / "val.npz").scores, expected, rtol=1e-4, atol=1e-5)
    for make in (CRL, CaPE, AdaFocal):
        (whole, resumed), (other, _) = (
            torch.load(tmp_path / f"{make.__name__}{rank}.pt", weights_only=True) for rank in range(2)
        )
        _assert_same(whole, resumed)
        for key, value in whole.items():
            assert torch.equal(other[key], value), f"{make.__name__}: {key} differs between processes"
