"""The wheel and the sdist in empty environments: core alone works, each adapter with its own extra alone.

The environments hold what the installed versions declare to need, by links, so that nothing is downloaded.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tests.data.folders import class_folders
from tests.processes import wait_for
from tests.report.chromium import FLAGS, find_or_install

pytestmark = pytest.mark.slow
pytest.importorskip("build")
pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[2]


def needed(name, extras=(), found=None):
    """The installed distributions that one needs, itself among them, by name."""
    from packaging.requirements import Requirement

    found = {} if found is None else found
    try:
        installed = distribution(name)
    except PackageNotFoundError:  # for another platform, or optional
        return found
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found and set(extras) <= found[key][1]:
        return found
    found[key] = (installed, set(extras) | (found[key][1] if key in found else set()))
    for text in installed.requires or ():
        wanted = Requirement(text)
        if any(wanted.marker is None or wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            needed(wanted.name, tuple(wanted.extras), found)
    return found


def linked(folder, *extras):
    """A folder with links to what acls and some of its extras need, but not to acls itself."""
    folder.mkdir()
    for name, (installed, _) in needed("torch-acls", extras).items():
        if name == "torch-acls":
            continue
        for top in {file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")}:
            place = Path(installed.locate_file(top))
            if place.exists() and not (folder / top).exists():
                (folder / top).symlink_to(place)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def installed(folder, package, *extras):
    """The interpreter of a new environment with the package and what it needs."""
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    site = next((folder / "env" / "lib").glob("python*/site-packages"))
    (site / "needed.pth").write_text(f"{linked(folder / 'needed', *extras)}\n")
    if package.suffix == ".gz":  # built here, where hatchling is
        quiet = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *quiet, str(package)], check=True, capture_output=True)
        (package,) = folder.glob("*.whl")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--disable-pip-version-check", str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return python


def say(python, *words, cwd):
    done = subprocess.run([str(python), "-I", *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_all_its_files(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
    kept = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "acls").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert kept <= names, sorted(kept - names)
    assert not any(name.startswith(("tests", "benchmarks", "examples")) for name in names)


def test_the_sdist_holds_tests_and_examples_and_what_they_read_but_no_studies(built):
    with tarfile.open(built[1]) as sdist:
        names = {name.split("/", 1)[-1] for name in sdist.getnames()}
    assert {"examples/plain_loop.py", "tests/conftest.py", "pyproject.toml", "LICENSE"} <= names
    assert {"CONTRIBUTING.md", "mkdocs.yml", "docs/python.md", "Makefile", "constraints.txt"} <= names
    assert not [name for name in names if name.startswith(("docs/results", "docs/reproduction"))]
    assert built[1].stat().st_size < 5e6, "it was 19.6 MB with the stored studies"


@pytest.mark.parametrize("which", ["wheel", "sdist"])
def test_core_alone_passes_the_smoke_test(built, tmp_path, which):
    python = installed(tmp_path, built[which == "sdist"])
    made = "import numpy as np; z = np.random.default_rng(0).normal(size=(200, 3)).astype('f4'); "
    made += "np.savez('p.npz', logits=z, labels=z.argmax(1))"
    say(python, "-c", made, cwd=tmp_path)
    where = say(python, "-c", "import acls; print(acls.__file__, acls.ACLS())", cwd=tmp_path)
    assert str(tmp_path) in where
    assert "ACLS()" in where
    assert "evaluate" in say(python, "-m", "acls", "--help", cwd=tmp_path)
    assert "MbLS" in say(python, "-m", "acls", "methods", cwd=tmp_path)
    assert "ECE %" in say(python, "-m", "acls", "evaluate", "p.npz", cwd=tmp_path)
    assert (tmp_path / "env" / "bin" / "acls").exists()
    absent = "import importlib.util as u; print([n for n in ('matplotlib', 'scipy', 'lightning') if u.find_spec(n)])"
    assert say(python, "-c", absent, cwd=tmp_path).strip() == "[]", "the environment is empty but for the core"
    told = subprocess.run(
        [str(python), "-I", "-c", "import acls.integrations.lightning"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "pip install 'torch-acls[lightning]'" in told.stderr


ADAPTERS = [
    ("lightning", "lightning"), ("transformers", "transformers"), ("vision", "timm"), ("torchmetrics", "torchmetrics"),
    ("sklearn", "sklearn"),
]  # fmt: skip


@pytest.mark.parametrize(("extra", "adapter"), ADAPTERS, ids=[extra for extra, _ in ADAPTERS])
def test_the_adapter_works_with_its_extra_alone(built, tmp_path, extra, adapter):
    python = installed(tmp_path, built[0], extra)
    code = f"import acls.integrations.{adapter} as adapter; print(adapter.__name__)"
    assert say(python, "-c", code, cwd=tmp_path).strip().endswith(adapter)


NET = """
from torch import nn

class MyNet(nn.Module):
    def __init__(self, n_classes, channels=3):
        super().__init__()
        self.body = nn.Conv2d(channels, 6, 3, stride=2)
        self.head = nn.Linear(6, n_classes)

    def forward(self, x):
        return self.head(self.body(x).relu().mean((2, 3)))
"""
ARRAYS = """
import json, sys
from pathlib import Path
import acls, numpy as np
from PIL import Image
from mynet import MyNet

def part(name):
    classes = sorted(path.name for path in Path("images", name).iterdir())
    files = [(path, k) for k, one in enumerate(classes) for path in sorted(Path("images", name, one).iterdir())]
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path, _ in files])
    return pixels.transpose(0, 3, 1, 2), np.array([k for _, k in files])

if __name__ == "__main__":
    settings = {"epochs": 2, "batch": 8, "optim.lr": 0.1, "data.flip": True}
    found = acls.compare("mynet.py:MyNet", *map(part, ("train", "val", "test")), methods="CE, ACLS", seeds=2,
                         settings=settings, out="arrays", classes=("ant", "bee", "cat"), show=False, page=False)
    print(json.dumps([[row.method, row.seed, row.posthoc, row.result.values] for row in found.rows]))
"""


@pytest.mark.timeout(3600)
def test_the_first_minutes_with_a_network_and_images_of_ones_own(built, tmp_path):
    """In an empty environment: a study is killed, goes on with other readers, its page opens, arrays say the same."""
    python = installed(tmp_path, built[0], "study", "vision")
    home = tmp_path / "home"
    class_folders(home / "images", parts=("train", "val", "test"), count=9, size=(16, 16))
    (home / "mynet.py").write_text(NET)
    command = [str(python), "-m", "acls", "compare", "custom", "--root", "images", "--model", "mynet.py:MyNet"]
    command += ["--methods", "CE, ACLS", "--seeds", "2", "--epochs", "2"]
    # What the images and the two cores of this test call for; without the first line they would be made 224 wide.
    command += ["--data.size", "16", "--data.memory", "true", "--data.scale", "1", "--data.normalise", "none"]
    command += ["--batch", "8", "--optim.lr", "0.1", "--workers", "1", "--json", "--quiet"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    first = subprocess.Popen([*command, "--data.workers", "2"], cwd=home, env=env, stdout=subprocess.PIPE)
    wait_for(lambda: list(home.glob("studies/custom/runs/*/metrics.csv")), first)
    first.kill()
    first.communicate()  # which also waits for its workers and their readers to end
    done = subprocess.run(
        [*command, "--data.workers", "0"], cwd=home, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {(row["method"], row["seed"], row["posthoc"]) for row in told["rows"]} == {
        (method, seed, after) for method in ("CE", "ACLS") for seed in (1, 2) for after in ("none", "Temperature")
    }
    (home / "arrays.py").write_text(ARRAYS)
    out = subprocess.run([str(python), "arrays.py"], cwd=home, env=env, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    numbers = {(row["method"], row["seed"], row["posthoc"]): row["metrics"] for row in told["rows"]}
    for method, seed, posthoc, values in json.loads(out.stdout):
        stored = {name: one["value"] for name, one in numbers[method, seed, posthoc].items()}
        assert {name: values[name] for name in stored if stored[name] is not None} == {
            name: value for name, value in stored.items() if value is not None
        }
    path = find_or_install()
    if path is None:
        pytest.skip("there is no Chromium on this machine: install Debian's chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        page, errors = browser.new_page(), []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((home / told["report"]).as_uri())
        text = page.locator("body").inner_text()
        browser.close()
    assert errors == []
    assert "ACLS" in text
    assert "ECE" in text
