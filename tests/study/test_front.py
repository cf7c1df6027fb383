"""Studies and runs on data handed over in Python: the command's numbers, any data set, the same study again."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import acls
from acls.cli import main
from acls.data import DataOptions
from acls.data.dataset import Draw
from acls.data.given import Items, gathered, labels
from acls.errors import InputError
from acls.study.store import Store
from acls.train import resume
from tests.data.folders import class_folders

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, n_classes, channels=3):
        super().__init__()
        self.body = nn.Conv2d(channels, 6, 3)
        self.head = nn.Linear(6, n_classes)

    def forward(self, x):
        return self.head(self.body(x).relu().mean((2, 3)))
"""
FAST = {"epochs": 2, "batch": 8, "optim.lr": 0.1}


def arrays(root, part):
    classes = sorted(path.name for path in (root / part).iterdir())
    files = [(path, k) for k, name in enumerate(classes) for path in sorted((root / part / name).iterdir())]
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path, _ in files])
    return pixels.transpose(0, 3, 1, 2), np.array([k for _, k in files])


def measured(folder):
    return {row.key: row.result.values for row in Store(folder).rows()}


def test_arrays_in_python_give_the_numbers_of_the_command_on_the_same_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    root = class_folders(tmp_path / "images", parts=("train", "val", "test"), count=9, size=(16, 16))
    command = "compare custom --root images --model net.py:Net --methods CE,ACLS --seeds 1 --epochs 2 --batch 8"
    command += " --optim.lr 0.1 --data.size 16 --data.memory true --data.scale 1 --data.normalise none --workers 1"
    assert main([*command.split(), "--out", "there", "--quiet", "--no-report"]) == 0
    parts = [arrays(root, part) for part in ("train", "val", "test")]
    call = {"methods": ["CE", acls.ACLS(margin=10.0)], "seeds": 1, "show": False, "page": False}
    call |= {"settings": FAST | {"data.flip": True}, "out": "here", "classes": ("ant", "bee", "cat")}
    here = acls.compare("net.py:Net", *parts, **call)
    assert measured("here") == measured("there")
    again = acls.compare("net.py:Net", *parts, **call)
    assert again.rows == here.rows
    parts[0][0][0] = 0
    with pytest.raises(InputError, match=r"data\.root"):
        acls.compare("net.py:Net", *parts, **call)


def test_a_hugging_face_data_set_gives_the_numbers_of_the_arrays_that_it_holds(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    x = np.random.default_rng(0).integers(0, 256, (30, 3, 16, 16), dtype=np.uint8)
    y = np.arange(30) % 3
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    images = [Image.fromarray(one.transpose(1, 2, 0)) for one in x]
    table = datasets.Dataset.from_dict({"image": images, "label": y.tolist()}, features=features)
    call = {"methods": "CE", "seeds": 1, "show": False, "page": False, "settings": FAST | {"data.flip": True}}
    acls.compare("net.py:Net", *((x[i::3], y[i::3]) for i in range(3)), **call, out="arrays", classes=("a", "b", "c"))
    acls.compare("net.py:Net", *(table.select(range(i, 30, 3)) for i in range(3)), **call, out="table")
    assert measured("table") == measured("arrays")
    split = table.train_test_split(0.4, seed=0)
    assert acls.fit("net.py:Net", split["train"], test=split["test"], loss="CE", settings=FAST, show=False).test["nll"]


class Noisy(torch.utils.data.Dataset):
    """Two classes of points, with noise from three generators."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        noise = torch.rand(1) + float(np.random.rand()) + random.random()  # noqa: NPY002
        return torch.cat([torch.tensor([float(i % 2), 1.0]), noise]), i % 2


def test_a_data_set_with_random_transforms_depends_on_seed_epoch_and_sample_only():
    source = Items(Noisy(6))
    before = random.getstate(), torch.get_rng_state()
    whole, _ = source.take(torch.arange(6), (3, 1), torch.arange(6))
    some, _ = source.take(torch.tensor([4]), (3, 1), torch.tensor([4]))
    other, _ = source.take(torch.tensor([4]), (3, 2), torch.tensor([4]))
    assert torch.equal(some[0], whole[4])
    assert not torch.equal(other, some)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_rows_of_a_table_and_label_maps_are_data_too():
    rows = [{"image": Image.new("L", (4, 4), 255 * (i % 2)), "label": i % 2} for i in range(8)]
    data = gathered(rows, None, rows, options=DataOptions(name="given", val=0.25), seed=1)
    x, y, _ = data.train.__getitems__(Draw(torch.arange(len(data.train)), 0))
    assert x.shape[1:] == (1, 4, 4)
    assert torch.equal(x[:, 0, 0, 0].long(), y)
    assert (data.n_classes, len(data.val)) == (2, 2)
    maps = torch.zeros(5, 4, 4, dtype=torch.long)
    maps[:, 0], maps[:, 1] = 2, 11
    part = (torch.rand(5, 3, 4, 4), maps)
    dense = gathered(part, part, part, options=DataOptions(name="given"), seed=1, void=11)
    assert (dense.segmentation, dense.n_classes, dense.void) == (True, 3, 11)
    assert labels(dense.train.source).shape == (5, 4, 4)


def test_one_network_is_fitted_with_a_class_of_a_notebook(tmp_path):
    class Local(nn.Linear):
        def __init__(self, n_classes):
            super().__init__(3, n_classes)

    result = acls.fit(Local, Noisy(24), Noisy(8), Noisy(8), loss="CE", settings=FAST, out=tmp_path / "run", show=False)
    assert 0 <= result.test["accuracy"] <= 1
    with pytest.raises(InputError, match="was passed in Python"):
        resume(tmp_path / "run")


def test_a_class_whose_source_nobody_keeps_will_do(tmp_path):
    scope = {"nn": nn, "__name__": "typed"}
    exec("class Typed(nn.Linear):\n    def __init__(self, n_classes): super().__init__(3, n_classes)", scope)
    call = {"methods": "CE", "seeds": 1, "settings": FAST, "out": tmp_path, "show": False, "page": False}
    assert len(acls.compare(scope["Typed"], Noisy(16), Noisy(8), Noisy(8), **call).rows) == 2


def test_what_cannot_be_data_or_a_model_is_said():
    x = np.zeros((4, 3), dtype=np.float32)
    for call, message in (
        ({"model": nn.Linear(3, 2), "train": (x, [0, 1, 0, 1]), "test": (x, [0, 1, 0, 1])}, "makes a network"),
        ({"model": "mlp", "train": (x, [0, 1]), "test": (x, [0, 1])}, "of the same length"),
        ({"model": "mlp", "train": 3, "test": 3}, "got int"),
        ({"model": "mlp", "train": (x, [0, 1, 0, 1])}, "train= and test="),
        ({"model": "mlp", "train": (x, [0, -1, 0, 1]), "test": (x, [0, 1, 0, 1])}, "class ids starting at 0"),
    ):
        with pytest.raises(InputError, match=message):
            acls.fit(**call)
