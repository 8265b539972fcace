"""From the name of a model to its loss: built-in names through entry points, the user's own as `module:function`.

A model factory is a function with keyword options that returns `(loss, args)` or `(loss, args, blocks)`. `args` may be shapes
(`jax.ShapeDtypeStruct`). `blocks(transform)` rebuilds the loss with every block wrapped by `transform`; without it the rows of
`compare` that transform blocks are absent. A factory may instead return an object with the attributes `loss` and `args`, and
optionally `blocks`, `has_aux`, `argnums`, and `materialise(seed)`, which returns real arguments.

An installed package offers a factory by name through the entry-point group `remat_lab.models`:

    [project.entry-points."remat_lab.models"]
    resnet = "experiments.models.resnet:make"
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from remat_lab.errors import RematLabError

GROUP = "remat_lab.models"


class ModelError(RematLabError):
    """A model's name, its options, or what its factory returned cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A loss, and what it is differentiated at.

    Attributes:
        name: as asked for.
        loss: scalar function of `*args`.
        args: arrays or shapes.
        blocks: rebuilds the loss with each block transformed; None if the model cannot.
        has_aux: whether the loss returns `(value, aux)`.
        argnums: which arguments to differentiate.
        materialise: returns real arguments for a seed; None if any will do.
    """

    name: str
    loss: Callable[..., Any]
    args: tuple[Any, ...]
    blocks: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    has_aux: bool = False
    argnums: int | tuple[int, ...] = 0
    materialise: Callable[[int], tuple[Any, ...]] | None = None


def names() -> list[str]:
    """Names of the built-in models of all installed packages, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def resolve(spec: str) -> Callable[..., Any]:
    """Finds a model factory.

    Args:
        spec: a built-in model's name, or `module:function`. For the latter the current directory is searched last, after
            everything installed.

    Raises:
        ModelError: if there is no such model, module or function, or if importing it fails.
    """
    if ":" in spec:
        return _load(EntryPoint(name=spec, value=spec, group=GROUP))
    found = entry_points(group=GROUP, name=spec)
    if not found:
        known = ", ".join(names()) or "none installed"
        raise ModelError(f"no model named {spec!r} (built in: {known}): for your own loss factory write module:function")
    return _load(next(iter(found)))


def build(spec: str, options: Mapping[str, Any] | None = None) -> Model:
    """Finds a model's factory and calls it.

    Args:
        spec: as for `resolve`.
        options: keyword arguments for the factory.

    Raises:
        ModelError: if the factory does not know an option, needs one that is missing, raises, or returns something else than
            a loss with arguments.
    """
    factory = resolve(spec)
    options = dict(options or {})
    _check_options(spec, factory, options)
    try:
        result = factory(**options)
    except Exception as error:
        raise ModelError(f"the model factory {spec!r} raised {_where(error)}") from error
    return _as_model(spec, result)


def _load(entry: EntryPoint) -> Callable[..., Any]:
    module, _, path = entry.value.partition(":")
    if not module or not path:
        raise ModelError(f"{entry.value!r} is not of the form module:function")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        target: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ModelError(f"no module {error.name!r} for model {entry.value!r}: looked in sys.path and in {here}") from error
        raise ModelError(f"importing {module!r} raised {_where(error)}") from error
    except Exception as error:
        raise ModelError(f"importing {module!r} raised {_where(error)}") from error
    for part in path.split("."):
        if not hasattr(target, part):
            offered = [name for name, value in vars(target).items() if inspect.isfunction(value) and not name.startswith("_")]
            raise ModelError(f"{module!r} has no {path!r} (functions there: {', '.join(offered) or 'none'})")
        target = getattr(target, part)
    if not callable(target):
        raise ModelError(f"{entry.value!r} is {type(target).__name__}, not a function that makes a loss")
    return target  # type: ignore[no-any-return]


def _check_options(spec: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in named) or "none"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = sorted(set(options) - {p.name for p in named})
    if unknown and not takes_any:
        raise ModelError(f"model {spec!r} has no option {', '.join(map(repr, unknown))}: its options are {known}")
    missing = [p.name for p in named if p.default is p.empty and p.name not in options]
    if missing:
        raise ModelError(f"model {spec!r} needs the option {', '.join(map(repr, missing))}: its options are {known}")


def _as_model(spec: str, result: Any) -> Model:
    fields: dict[str, Any] = {}
    if isinstance(result, tuple) and not hasattr(result, "loss"):
        if len(result) not in (2, 3):
            raise ModelError(f"the model factory {spec!r} returned {len(result)} values: (loss, args) or (loss, args, blocks)")
        fields.update(zip(("loss", "args", "blocks"), result, strict=False))
    elif hasattr(result, "loss") and hasattr(result, "args"):
        optional = ("blocks", "has_aux", "argnums", "materialise")
        fields.update(loss=result.loss, args=result.args)
        fields.update({key: getattr(result, key) for key in optional if hasattr(result, key)})
    else:
        raise ModelError(f"the model factory {spec!r} returned {type(result).__name__}: (loss, args) or (loss, args, blocks)")
    if not callable(fields["loss"]):
        raise ModelError(f"the model factory {spec!r} returned a loss of type {type(fields['loss']).__name__}: not a function")
    if not isinstance(fields["args"], tuple | list):
        kind = type(fields["args"]).__name__
        raise ModelError(f"the model factory {spec!r} returned args of type {kind}: a tuple with one entry per argument")
    fields["args"] = tuple(fields["args"])
    return Model(name=spec, **fields)


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}{at}"
