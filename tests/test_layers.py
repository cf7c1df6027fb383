"""Imports point down only, and importing acls brings nothing that is not needed."""

import ast
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "acls"

# Each layer may import itself and what stands above it in this list.
LAYERS = [
    {"errors", "options", "shown", "spec", "vision"},
    {"arrays", "shapes", "distributed", "modules", "hashing"},
    {"predictions", "storage"},
    {"metrics"},
    {"losses", "calibrators"},
    {"results", "data", "models"},
    {"recipes"},
    {"train"},
    {"study", "watch"},
    {"report"},
    {"reproduce", "front"},
    {"integrations", "cli", "__main__"},
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
CORE = {"torch", "numpy", "acls", "typing_extensions"} | sys.stdlib_module_names  # torch brings typing_extensions


def _layer(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def _imports(path: Path):
    """Yield (absolute module, whether the import runs when the file is imported)."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        eager = id(node) not in inside and id(node) not in typing_only
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, eager
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write it out"
            yield node.module, eager


def test_contributing_lists_every_layer_and_the_package_has_no_other():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    listed = re.search(r"Imports point down only: `(.*?)`", text, re.S)[1]
    assert [{name.strip() for name in layer.split(",")} for layer in listed.split("<")] == [
        layer - {"__main__"} for layer in LAYERS
    ]
    assert {_layer(path) for path in PACKAGE.rglob("*.py")} - {"__init__"} == set(HEIGHT)


def test_imports_point_down_only():
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent == PACKAGE and path.name == "__init__.py":
            continue
        own = HEIGHT[_layer(path)]
        for module, _ in _imports(path):
            if module.startswith("acls.") and HEIGHT[module.split(".")[1]] > own:
                wrong.append(f"{path.relative_to(PACKAGE.parent)} imports {module}, which is above it")
    assert not wrong, "\n".join(wrong)


def test_only_the_views_of_results_are_above_them():
    """A module that is imported by its name in a string counts as well; results draw and print themselves."""
    above = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for module in re.findall(r"""(?:require|import_module)\(["']acls\.(\w+)""", path.read_text(encoding="utf-8"))
        if HEIGHT[module] > HEIGHT[_layer(path)]
    }
    assert above == {"shown.py", "results/result.py"}


def test_extras_are_imported_where_they_are_used():
    wrong = [
        f"{path.relative_to(PACKAGE.parent)} imports {module} when it is itself imported"
        for path in sorted(PACKAGE.rglob("*.py"))
        if _layer(path) != "integrations"
        for module, eager in _imports(path)
        if eager and module.split(".")[0] not in CORE
    ]
    assert not wrong, "\n".join(wrong)


def test_only_distributed_imports_torch_distributed():
    wrong = [
        str(path.relative_to(PACKAGE.parent))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "distributed.py"
        for module, _ in _imports(path)
        if module.startswith("torch.distributed")
    ]
    assert not wrong


def test_help_does_not_import_torch():
    code = "import sys, acls.cli\ntry: acls.cli.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_import_brings_no_extra():
    """Not even where the extras are installed: whoever only wants a loss does not pay for pandas."""
    extras = [
        "matplotlib",
        "scipy",
        "sklearn",
        "pandas",
        "pyarrow",
        "safetensors",
        "rich",
        "optuna",
        "ray",
        "lightning",
    ]
    code = (
        "import sys, acls\nacls.ACLS, acls.Suite, acls.Temperature, acls.Predictions\n"
        f"print([name for name in {extras!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


SHARED_WORDS = {
    "CalibrationCallback",  # of two frameworks, whose users import it from that framework's module
    # To be renamed on the side that is not public:
    "Batches",  # a file of predictions; the alias in calibrators/calibration_set.py
    "Part",  # of a data set; the alias in calibrators/local.py
    "Verdict",  # on a result; the alias in reproduce/claims.py
}


def _alias(node):
    """Return the name of a type alias: ``X = Literal[...]``, ``X = A | B``, ``type X = ...``; otherwise None."""
    if type(node).__name__ == "TypeAlias":
        return node.name.id
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        name, value = node.targets[0].id, node.value
        union = isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
        if re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name) and (isinstance(value, ast.Subscript) or union):
            return name
    return None


def test_one_word_names_one_class_or_type_alias():
    places = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for name in [*classes, *filter(None, map(_alias, tree.body))]:
            places.setdefault(name.removeprefix("_"), []).append(str(path.relative_to(PACKAGE)))
    assert {name for name, found in places.items() if len(found) > 1} == SHARED_WORDS


def test_commands_make_no_table_and_write_no_json_of_their_own():
    """They parse, call and print: tables and sentences are in acls/report, numbers in the packages below it."""
    wrong = [
        f"{path.name} imports {module}"
        for path in sorted((PACKAGE / "cli").glob("*.py"))
        for module, _ in _imports(path)
        if module.split(".")[0] in ("csv", "yaml", "numpy", "statistics")
        or (module == "json" and path.name != "common.py")
        or (module == "torch" and path.name != "common.py")
    ]
    tables = [path.name for path in (PACKAGE / "cli").glob("*.py") if "Table(" in path.read_text()]
    assert wrong + tables == []
