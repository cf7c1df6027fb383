"""Studies and runs in Python: ``acls.compare(model=..., train=..., test=...)`` and ``acls.fit(...)``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acls.data import DataOptions
from acls.data.given import fingerprint, gathered
from acls.errors import InputError
from acls.models.own import resolved
from acls.options import override
from acls.recipes import Recipe, find
from acls.report.page import write
from acls.shapes import IGNORE_INDEX
from acls.spec import Spec
from acls.study.engine import Here, make_engine
from acls.study.progress import Progress
from acls.study.runs import Failed, chosen, plan, run_study
from acls.study.store import Row, Store
from acls.train import Given, Result
from acls.train import fit as train_recipe

METHODS = ("CE", "LabelSmoothing", "Focal", "MbLS", "CRL", "ACLS")


@dataclass(frozen=True)
class Comparison:
    """A finished study: what was measured, and the page that shows it."""

    folder: Path
    rows: list[Row]
    """One per method, seed and post-hoc method; ``row.result.values["ece"]`` is a number."""
    failed: list[Failed]
    page: Path | None


def compare(
    model: str | Callable[..., Any],
    train: Any,
    val: Any = None,
    test: Any = None,
    *,
    methods: str | Sequence[Any] = METHODS,
    seeds: int | Iterable[int] = 3,
    posthoc: str = "temperature",
    recipe: str | Recipe = "custom",
    settings: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    void: int = IGNORE_INDEX,
    out: str | Path | None = None,
    workers: int = 1,
    page: bool = True,
    show: bool = True,
) -> Comparison:
    """Train a network with each method and seed, measure, and write the page: `acls compare` for data in Python.

    ``model`` is a name, as for ``--model``, or a class or function that makes a network: it is called with
    ``n_classes=``, ``channels=`` if it takes it, and ``settings={"model.arguments": {...}}``. ``train``, ``val`` and
    ``test`` are arrays ``(x, y)``, torch data sets or Hugging Face data sets; without ``val`` it is held out of
    ``train``. Bytes are images in 0..255, floats are what the network gets. ``settings`` are those of the recipe by
    their dotted names, as in ``{"epochs": 10, "optim.lr": 0.01, "data.flip": True}``.

    The same call goes on with a study that was stopped. One worker is this process; with more, model and data must be
    picklable, the model by its name in a module.
    """
    recipe, given = _prepared(model, (train, val, test), recipe, settings, classes, void)
    folder = Path(out or Path("studies") / recipe.name)
    specs = methods if isinstance(methods, str) else [Spec.of(one) for one in methods]
    which = range(recipe.seed, recipe.seed + seeds) if isinstance(seeds, int) else seeds
    cells = [replace(cell, given=given) for cell in plan(folder, recipe, specs, which, posthoc)]
    engine = Here.make() if workers == 1 else make_engine("local", workers=workers)
    failed = run_study(cells, engine, progress=Progress(show=show))
    rows = chosen(cells, Store(folder).rows())
    if page and rows:
        write(folder, folder / "report.html")
    return Comparison(folder, rows, failed, folder / "report.html" if page and rows else None)


def fit(
    model: str | Callable[..., Any],
    train: Any,
    val: Any = None,
    test: Any = None,
    *,
    loss: Any = "ACLS",
    recipe: str | Recipe = "custom",
    settings: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    void: int = IGNORE_INDEX,
    out: str | Path | None = None,
    show: bool = True,
) -> Result:
    """Train one network on data in Python and write its run, as `acls train` does; arguments as in `compare`."""
    recipe, given = _prepared(model, (train, val, test), recipe, settings, classes, void)
    recipe = replace(recipe, loss=recipe.loss.with_spec(Spec.of(loss, "loss")))
    return train_recipe(recipe, out, show=show, given=given)


def _prepared(
    model: str | Callable[..., Any],
    parts: tuple[Any, Any, Any],
    recipe: str | Recipe,
    settings: Mapping[str, Any] | None,
    classes: Sequence[str] | None,
    void: int,
) -> tuple[Recipe, Given]:
    base = find(recipe) if isinstance(recipe, str) else recipe
    data = DataOptions(name="given", root=fingerprint(*parts), val=base.data.val)
    base = override(replace(base, data=data, log=()), settings or {})
    factory = None if isinstance(model, str) else _checked(model)
    options = replace(base.model, name=model if isinstance(model, str) else f"{model.__module__}:{model.__qualname__}")
    base = replace(base, model=resolved(options, factory))

    return base, Given(Loaded(parts, classes, void), factory)


def _checked(model: Callable[..., Any]) -> Callable[..., Any]:
    torch = sys.modules["torch"]
    if isinstance(model, torch.nn.Module) or not hasattr(model, "__qualname__"):
        raise InputError(
            f"expected a class or function that makes a network for each run, got {type(model).__name__}: "
            "write def make(n_classes): return ..."
        )
    return model


@dataclass(frozen=True)
class Loaded:
    """Makes the three parts for the settings and seed of a run."""

    parts: tuple[Any, Any, Any]
    classes: Sequence[str] | None
    void: int

    def __call__(self, options: DataOptions, seed: int) -> Any:
        return gathered(*self.parts, options=options, seed=seed, classes=self.classes, void=self.void)
