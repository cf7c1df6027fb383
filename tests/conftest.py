"""What the tests share: where real data is, if it is there, and one thread per test process."""

import os
from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).parent / "golden" / "losses.json"
SHARED = Path(os.environ.get("ACLS_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run the tests that share two spawned processes in one worker, so that they are spawned once."""
    for item in items:
        if "two_processes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


@pytest.fixture(scope="session")
def shared():
    """The folder of real data beside the clone."""
    if not SHARED.is_dir():
        pytest.skip(f"no real data at {SHARED}: set ACLS_SHARED to its folder")
    return SHARED


@pytest.fixture(scope="session")
def outputs(request):
    """The path of a file of real networks' outputs by its name: of those in the clone, else of those beside it."""

    def path(name):
        here = GOLDEN.parent / "logits" / f"{name}.npz"
        return here if here.is_file() else request.getfixturevalue("shared") / "data" / "logits" / f"{name}.npz"

    return path


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    # xdist runs a process per core; more threads, also of the processes that tests start, only slow each other down.
    if os.environ.get("PYTEST_XDIST_WORKER"):
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)


@pytest.fixture
def one_thread():
    """Compute as processes with one thread do, to the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
