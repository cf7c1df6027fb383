"""Without its library, an adapter says how to install it."""

import subprocess
import sys

# Adapter, the library it needs, the extra that brings it.
ADAPTERS = [
    ("lightning", "lightning", "lightning"),
    ("transformers", "transformers", "transformers"),
    ("timm", "timm", "vision"),
    ("torchmetrics", "torchmetrics", "torchmetrics"),
    ("sklearn", "sklearn", "sklearn"),
]
CODE = f"""
import importlib, sys

sys.modules.update(dict.fromkeys({[library for _, library, _ in ADAPTERS]!r}))  # None: as if not installed
from acls.errors import MissingExtra
for adapter in {[adapter for adapter, _, _ in ADAPTERS]!r}:
    try:
        importlib.import_module(f"acls.integrations.{{adapter}}")
    except MissingExtra as error:
        print(error)
import acls.integrations.loop  # needs none
"""


def test_a_missing_library_is_told_with_the_install_line():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"this needs {library}, which is not installed: pip install 'torch-acls[{extra}]'"
        for _, library, extra in ADAPTERS
    ]
