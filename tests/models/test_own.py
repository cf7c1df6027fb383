"""The user's own network: found by file or module, called with its arguments, recognised when its source changes."""

import pytest
import torch

from acls.cli import main
from acls.errors import InputError
from acls.models import ModelOptions, build_model
from acls.models.own import resolved
from acls.recipes import load_recipe
from tests.data.folders import class_folders
from tests.study.quick import HERE

NET = """
import beside
from torch import nn

class MyNet(nn.Module):
    def __init__(self, n_classes, channels, width=beside.WIDTH):
        super().__init__()
        self.body = nn.Conv2d(channels, width, 3)
        self.head = nn.Linear(width, n_classes)

    def forward(self, x):
        return self.head(self.body(x).relu().mean((2, 3)))

def other(num_classes):
    return nn.Linear(8, num_classes)

def wrong(n_classes):
    return n_classes
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the user's files, as the working folder."""
    (tmp_path / "mynet.py").write_text(NET)
    (tmp_path / "beside.py").write_text("WIDTH = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    for name in ("mynet", "beside"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("place", ["mynet.py", "mynet", "./mynet.py"])
def test_a_network_is_found_in_a_file_or_a_module_and_called_with_what_it_takes(place, here):
    model = build_model(ModelOptions(name=f"{place}:MyNet"), n_classes=4, channels=2)
    assert model(torch.randn(3, 2, 8, 8)).shape == (3, 4)
    wide = build_model(ModelOptions(name=f"{place}:MyNet", arguments={"width": 7}), n_classes=4, channels=2)
    assert wide.body.out_channels == 7
    assert build_model(ModelOptions(name=f"{place}:other"), n_classes=4).out_features == 4


def test_what_cannot_be_called_is_said_with_the_way_out(here):
    for name, arguments, message in (
        ("mynet.py:MyNett", {}, "did you mean 'MyNet'"),
        ("mynet.py:MyNet", {"with": 3}, "has no argument 'with': did you mean 'width'"),
        ("mynet.py:wrong", {}, r"returned int, expected a torch\.nn\.Module"),
        ("absent.py:MyNet", {}, "there is no file"),
        ("absent.module:MyNet", {}, "importing absent.module failed"),
        ("torch.nn:ReLU", {}, "takes no argument n_classes"),
    ):
        with pytest.raises(InputError, match=message):
            build_model(ModelOptions(name=name, arguments=arguments), n_classes=4, channels=2)
    with pytest.raises(InputError, match="resnet8 takes no arguments"):
        build_model(ModelOptions(name="resnet8", arguments={"width": 3}), n_classes=4)


def test_a_change_of_the_source_is_noticed(here):
    options = resolved(ModelOptions(name="mynet.py:MyNet"))
    assert options.name == f"{here / 'mynet.py'}:MyNet"
    build_model(options, n_classes=4, channels=2)
    (here / "mynet.py").write_text(NET + "# changed\n")
    with pytest.raises(InputError, match=r"the source of .* has changed"):
        build_model(options, n_classes=4, channels=2)


def test_a_study_trains_it_on_a_folder_with_two_readers_and_goes_on_with_none(here, capsys, monkeypatch):
    monkeypatch.setattr("acls.study.engine.make_engine", lambda *_, **__: HERE)  # `tests/packaging` has processes
    class_folders(here / "images", count=12, size=(16, 16))
    command = "compare custom --root images --model mynet.py:MyNet --model.width 6 --data.size 16 --methods CE"
    command += " --epochs 1 --posthoc none --workers 1 --out study --quiet --no-report"
    assert main([*command.split(), "--seeds", "1", "--data.workers", "2"]) == 0
    assert load_recipe(here / "study/runs/CE-1/recipe.yaml").model.arguments == {"width": 6}
    assert main([*command.split(), "--seeds", "2", "--data.workers", "0"]) == 0
    assert main(["predict", "study/runs/CE-2", "--out", "test.npz"]) == 0
    (here / "mynet.py").write_text(NET + "# changed\n")
    capsys.readouterr()
    assert main([*command.split(), "--seeds", "2"]) == 2
    assert "the source of " in capsys.readouterr().err
