"""What the README says that peers have and lack, read from the sources of those that are installed."""

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest

from tests.pins import pinned

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
MODULES = {
    "torchmetrics": "torchmetrics",
    "netcal": "netcal",
    "torch-uncertainty": "torch_uncertainty",
    "scikit-learn": "sklearn",
    "probmetrics": "probmetrics",
}
HAS = {
    "torchmetrics": ("class MulticlassCalibrationError", 'add_state("confidences", []'),
    "netcal": ("class ECE", "class TemperatureScaling", "class MMCEPenalty"),
    "torch-uncertainty": ("class AdaptiveCalibrationError", "class TemperatureScaler", "class FocalLoss"),
    "scikit-learn": ("def calibration_curve", "class CalibratedClassifierCV", "temperature"),
    "probmetrics": ("class SmoothCalibrationError", "class Calibrator"),
}
LACKS = {
    "torchmetrics": (r"class \w*(Adaptive|Classwise|Smooth)Calibration", r"class \w*TemperatureScal"),
    "netcal": (r"class \w*(Focal|LabelSmooth|Margin)",),
    "torch-uncertainty": (r"class \w*(Margin|MbLS|ACLS|MMCE)\w*Loss",),
    "scikit-learn": (r"(def|class) \w*(expected_calibration_error|ExpectedCalibrationError|\bece\b)",),
    "probmetrics": (r"class \w*(Focal|LabelSmooth|Margin|ACLS)",),
}
ALL_LACK = (r"noise.floor", r"(def|class) \w*(paired|Paired)\w*(test|Test|calib|Calib)", r"\b(MbLS|ACLS)\b")


def _source(peer: str) -> str:
    found = importlib.util.find_spec(MODULES[peer])
    assert found is not None
    assert found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0])
    files = (path for path in folder.rglob("*.py") if "tests" not in path.parts)
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


@pytest.mark.parametrize("peer", MODULES)
def test_the_readmes_table_of_peers_is_true_of_what_is_installed(peer):
    row = next(line for line in README.splitlines() if line.startswith(f"| {peer} "))
    assert pinned(peer).rsplit(".", 1)[0] in row  # what it was checked against
    source = _source(peer)
    for there in HAS[peer]:
        assert there in source, there
    for absent in (*LACKS[peer], *ALL_LACK):
        assert not re.search(absent, source), absent
    scripts = [one.name for one in importlib.metadata.distribution(peer).entry_points if one.group == "console_scripts"]
    assert scripts == []
