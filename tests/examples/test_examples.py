"""Every example runs as a user would run it, and says what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# What is printed, and the library without which there is nothing to show.
PROMISED = {
    "plain_loop": ("after T =", "sklearn"),
    "post_hoc": ("Temperature    ECE", None),
    "lightning_module": ("val/ece_floor", "lightning"),
    "transformers_sequence": ("eval_ece_floor", "transformers"),
    "timm_finetune": ("ece_floor", "timm"),
    "segmentation": ("torchvision", "segmentation_models_pytorch"),
    "onnx_export": ("calibrated.onnx: probabilities agree", "onnxruntime"),
}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_the_example_runs(name, tmp_path):
    promised, library = PROMISED[name]
    if (
        library is not None
        and subprocess.run(
            [sys.executable, "-c", f"import importlib.util as u; raise SystemExit(u.find_spec({library!r}) is None)"],
            check=False,
        ).returncode
    ):
        pytest.skip(f"{library} is not installed")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert promised in done.stdout
