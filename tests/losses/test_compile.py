"""torch.compile traces every pointwise loss without a break and gives the same numbers."""

import pytest
import torch

from acls.losses import ACLS, CE, REGISTRY, Focal, MbLS
from tests.contract.losses import inputs, ready, value_and_gradient

POINTWISE = [name for name, kind in REGISTRY.items() if not kind.couples_samples and name != "CaPE"]


def _same_compiled(make, backend, sizes=((7, 5),)):
    torch._dynamo.reset()
    loss = ready(make, ignore_index=255).float()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    for n, k in sizes:
        z, y, _ = inputs(n, k, dtype=torch.float32)
        y[1] = 255
        for ours, expected in zip(
            value_and_gradient(compiled, z, y, None), value_and_gradient(loss, z, y, None), strict=True
        ):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", POINTWISE)
def test_no_pointwise_loss_breaks_the_graph(name):
    _same_compiled(REGISTRY[name], "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("make", [CE, Focal, MbLS, ACLS])
def test_compiled_code_gives_the_same(make, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # a compile killed half-way must not break later runs
    _same_compiled(make, "inductor", sizes=((7, 5), (300, 100)))
