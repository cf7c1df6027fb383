"""docs/peers.md: every answer is what the installed library gives."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import acls
from acls.errors import MissingExtra
from acls.vision import torchvision
from tests.pins import pinned

PAGE = (Path(__file__).parents[2] / "docs" / "peers.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d\.\d+) \| .*? \| `(.+)` \|$", PAGE, re.M)


def test_the_page_has_its_rows():
    assert len(ROWS) == 11


@pytest.mark.parametrize(("answer", "code"), ROWS, ids=[code[:50] for _, code in ROWS])
def test_an_answer_is_the_librarys(answer, code):
    library = code.split(".")[0]
    with contextlib.suppress(MissingExtra):
        torchvision()  # before torchmetrics, which imports it
    names = {"np": np, "torch": torch, "acls": acls}
    if "integrations" in code:
        pytest.importorskip("acls.integrations.torchmetrics", exc_type=ImportError)
    if library != "acls":
        pinned({"sklearn": "scikit-learn"}.get(library, library))
        for module in {library, ".".join(code.split("(")[0].split(".")[:2])}:
            names[library] = pytest.importorskip(module)
        names[library] = __import__(library)
    (made,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(made, names)
    assert float(eval(code, names)) == pytest.approx(float(answer), abs=5e-5)
