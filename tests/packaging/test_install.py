"""The wheel and the sdist in empty environments: core alone works, each adapter with its own extra alone.

The environments hold what the installed versions declare to need, by links, so that nothing is downloaded.
"""

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

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


def linked(folder, extra=None):
    """A folder with links to what acls and one of its extras need, but not to acls itself."""
    folder.mkdir()
    for name, (installed, _) in needed("torch-acls", (extra,) if extra else ()).items():
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


def installed(folder, package, extra=None):
    """The interpreter of a new environment with the package and what it needs."""
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    site = next((folder / "env" / "lib").glob("python*/site-packages"))
    (site / "needed.pth").write_text(f"{linked(folder / 'needed', extra)}\n")
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


def test_the_sdist_holds_tests_and_examples(built):
    with tarfile.open(built[1]) as sdist:
        names = {name.split("/", 1)[-1] for name in sdist.getnames()}
    assert {"examples/plain_loop.py", "tests/conftest.py", "pyproject.toml", "LICENSE"} <= names


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
