"""From the words of a command line to a model and its inputs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import torch
import typer

from kforge_dynamo.errors import SettingsError

_SHAPE = re.compile(r"^(\d+(?:x\d+)*|\(\))(?::([a-z0-9]+))?$")

TargetWord = Annotated[str, typer.Argument(metavar="TARGET", help="module:factory or file.py:factory of a torch.nn.Module")]
Shapes = Annotated[
    list[str], typer.Option("--shapes", help="the inputs of one call, by commas: 8x128,8x16:int64; repeat for more calls")
]
Dtype = Annotated[str, typer.Option(help="dtype of inputs that name none, and of the model")]
Device = Annotated[str, typer.Option(help="cpu or cuda")]
Train = Annotated[bool, typer.Option("--train", help="the backward graph too")]
Function = Annotated[bool, typer.Option("--function", help="TARGET is a function of tensors, not a factory")]
"""The words that every command about a TARGET takes."""


def load_target(text: str, *, function: bool) -> Callable[..., Any]:
    """The model that `module:factory` or `file.py:factory` makes, in eval mode; with `function` the named function itself.

    A factory that is a module instance is used as it is. Raises: SettingsError in one sentence.
    """
    place, separator, name = text.rpartition(":")
    if not separator or not place or not name.isidentifier():
        raise SettingsError(f"target {text!r}: expected module:factory or file.py:factory")
    found = _attribute(_module(place), place, name)
    if function:
        return found
    model: Any = found if isinstance(found, torch.nn.Module) else _made(text, found)
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise SettingsError(f"target {text!r} made a {kind}, expected a torch.nn.Module; for a plain function add --function")
    model.eval()
    return model


def _made(text: str, factory: Callable[..., Any]) -> Any:
    """What the factory returns, called without arguments."""
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise SettingsError(
            f"target {text!r} cannot be called without arguments ({error}); for a plain function add --function"
        ) from error
    return factory()


def make_inputs(words: Sequence[str], *, dtype: str, device: str, seed: int = 0) -> list[torch.Tensor]:
    """One tensor a word like `8x128` or `8x128:int64`: N(0, 1) values, integers from 0 to 99, random booleans.

    Raises: SettingsError for a word of another form or an unknown dtype.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for word in words:
        match = _SHAPE.match(word)
        if match is None:
            raise SettingsError(
                f"shape {word!r}: expected numbers joined by x, and a dtype if need be, as in 8x128 or 8x16:int64"
            )
        shape = [] if match[1] == "()" else [int(part) for part in match[1].split("x")]
        kind = getattr(torch, match[2] or dtype, None)
        if not isinstance(kind, torch.dtype):
            raise SettingsError(f"shape {word!r}: torch has no dtype {match[2] or dtype!r}")
        tensors.append(_values(shape, kind, generator).to(device))
    return tensors


def _values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 100, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise SettingsError(f"target file {place!r} does not exist; it was looked for in {Path.cwd()}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise SettingsError(f"target file {place!r} is no Python module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise SettingsError(f"target module {place!r} cannot be imported: {error}") from error


def _attribute(module: ModuleType, place: str, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if found is None:
        names = ", ".join(sorted(item for item in vars(module) if not item.startswith("_"))[:12])
        raise SettingsError(f"{place} has no {name!r}; it has {names}")
    if not callable(found):
        raise SettingsError(f"{place}:{name} is a {type(found).__name__}, expected a function or a module")
    callable_: Callable[..., Any] = found
    return callable_
