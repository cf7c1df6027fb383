"""Networks of the user, ``package.module:Class`` or ``path/to/file.py:Class``, recorded with a hash of the source."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.errors import InputError, MissingExtra, suggest
from acls.models import ModelOptions
from acls.vision import torchvision

if TYPE_CHECKING:
    from torch import nn

_CLASSES = ("n_classes", "num_classes")


def is_own(name: str) -> bool:
    """Return whether the name of a model is a module or file with a class."""
    return ":" in name


def resolved(options: ModelOptions, factory: Callable[..., Any] | None = None) -> ModelOptions:
    """Return the options with the full path and the source hash of the user's file; other options do not change.

    If ``factory`` is given as an object, the hash is that of its source.
    """
    if not is_own(options.name):
        return options
    if factory is not None:
        return replace(options, source=_digest(factory))
    place, _, name = options.name.rpartition(":")
    if place.endswith(".py"):
        options = replace(options, name=f"{Path(place).expanduser().absolute()}:{name}")
    return options if options.source else replace(options, source=_digest(_find(options.name)))


def build(options: ModelOptions, n_classes: int, channels: int, factory: Callable[..., Any] | None) -> nn.Module:
    """Call the factory, or the class that the name refers to, after checking that its source has not changed.

    It is called with ``n_classes=`` (or ``num_classes=``), with ``channels=`` if it has this parameter, and with the
    arguments of the options.
    """
    from torch import nn

    name, found = options.name, factory or _find(options.name)
    if options.source not in ("", _digest(found)):
        raise InputError(f"the source of {name} has changed since the run began: restore it, or pass another --out")
    parameters = inspect.signature(found).parameters
    anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    classes = next((one for one in _CLASSES if one in parameters), _CLASSES[0] if anything else None)
    if classes is None:
        raise InputError(f"{name} takes no argument n_classes, the number of classes: add it, or wrap it in a function")
    given = {classes: n_classes, **({"channels": channels} if "channels" in parameters else {})}
    ours = {name: getattr(options, name) for name in ("dropout", "stem", "pretrained")}
    changed = {name: value for name, value in ours.items() if value != getattr(ModelOptions, name)}
    for argument, value in (changed | options.arguments).items():
        if argument not in parameters and not anything:
            raise InputError(f"{name} has no argument {argument!r}{suggest(argument, parameters)}")
        given[argument] = value
    try:
        model = found(**given)
    except TypeError as error:
        raise InputError(f"{name} cannot be called with {', '.join(given)}: {error}") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"{name} returned {type(model).__name__}, expected a torch.nn.Module")
    return model


def _find(name: str) -> Any:
    place, _, attribute = name.rpartition(":")
    with suppress(MissingExtra):
        torchvision()  # user code may import torchvision, so our guarded import runs first
    try:
        if place.endswith(".py"):
            module = _from_file(Path(place))
        else:
            _import_from(Path.cwd())  # a console script does not search the current folder
            module = importlib.import_module(place)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"--model {name}: importing {place} failed: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        known = [one for one, value in vars(module).items() if inspect.isclass(value) or inspect.isfunction(value)]
        raise InputError(f"--model {name}: there is no {attribute!r} in {place}{suggest(attribute, known)}")
    return found


def _from_file(path: Path) -> Any:
    path = path.expanduser().absolute()
    if not path.is_file():
        raise InputError(f"there is no file {path}: expected --model path/to/file.py:Class")
    _import_from(path.parent)  # so that the file can import modules from its own folder
    name = f"acls_own_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _import_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _digest(found: Any) -> str:
    """Return the first half of the SHA-256 of the source file, or of the code if there is no file.

    The result is "unknown" for code that was typed interactively and of which Python keeps no source.
    """
    with suppress(TypeError, OSError):
        return hashlib.sha256(Path(inspect.getsourcefile(found) or "").read_bytes()).hexdigest()[:32]
    with suppress(TypeError, OSError):
        return hashlib.sha256(inspect.getsource(found).encode()).hexdigest()[:32]
    return "unknown"
