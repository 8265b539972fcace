"""Steps as programs on the traced leaves of one call, each distinct program compiled once under each set of options.

The rows of a comparison, what plans compile to keep their promise, and plain JAX as their reference are often the same program:
equal are those whose StableHLO is. All are functions of a flat list of arrays that return one, so that equal programs can also
be called alike.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import jax

from remat_lab.call import Call
from remat_lab.environment import cores
from remat_lab.errands import Errands
from remat_lab.measure import Compiled, compile_lowered
from remat_lab.targets import Target, as_target

Leaves = Callable[..., list[Any]]
_ELSEWHERE = ("jax.const", "__elided__", "dense_resource")  # marks of constants whose values are not in the text
_THREADS = 2  # XLA compiles a program mostly in one thread


class LossStep:
    """`jax.value_and_grad` of a loss on the traced leaves of a call. Once traced it knows the structure of its results."""

    def __init__(self, loss: Callable[..., Any], call: Call, argnums: int | tuple[int, ...], has_aux: bool):
        self._step, self._call = jax.value_and_grad(loss, argnums, has_aux=has_aux), call
        self._tree: Any = None

    def __call__(self, *values: Any) -> list[Any]:
        """The leaves of value (with aux) and gradients."""
        args, kwargs = self._call.rebuild(values)
        leaves, self._tree = jax.tree.flatten(self._step(*args, **kwargs))
        return leaves

    def unflatten(self, results: Sequence[Any]) -> Any:
        """(value, gradients) as `jax.value_and_grad` returns them."""
        return jax.tree.unflatten(self._tree, results)


@dataclass(frozen=True, slots=True)
class Program:
    """A step that can be compiled and run on leaves.

    Attributes:
        step: from the traced leaves to those of the results; one object, so that JAX traces it once.
        unflatten: these as (value, gradients).
    """

    step: Leaves
    unflatten: Callable[[Sequence[Any]], Any]


type _Key = tuple[object, ...]  # what equal programs under equal options have in common


class _Lowered(NamedTuple):
    """A program to be compiled, and the seconds that it took to get there."""

    stage: Any
    seconds: float


class Programs:
    """Compiles steps for one call and one target, and keeps what it compiled; as a context it leaves no compilation running.

    Steps are traced where `errands` says, and compiled in any thread.
    """

    def __init__(self, call: Call, target: Target | None = None, errands: Errands | None = None):
        self._values, self._target, self._errands = call.abstract().values, target, errands or Errands()
        self._same: dict[Leaves, object] = {}  # for a step, what it has in common with equal ones
        self._found: dict[_Key, Future[Compiled]] = {}
        self._pool = ThreadPoolExecutor(min(_THREADS, cores()), "compile")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for found in self._found.values():
            found.cancel()  # if it was begun only

    def compile(self, step: Leaves, options: Mapping[str, Any]) -> Compiled:
        """A step compiled with some options, for its statistics and to be run on leaves."""
        found, lowered = self._errands.ask(partial(self._find, step, options))
        if lowered is not None:
            _fulfil(found, lowered, options)
        return found.result()

    def begin(self, step: Leaves, options: Mapping[str, Any]) -> None:
        """Traces a step, and compiles it in another thread, for when `compile` is asked for it, who also raises what fails."""
        try:
            found, lowered = self._find(step, options)
        except Exception:
            return  # it will fail again
        if lowered is not None:
            self._pool.submit(_fulfil, found, lowered, options)

    def _find(self, step: Leaves, options: Mapping[str, Any]) -> tuple[Future[Compiled], _Lowered | None]:
        """Where the compiled program will be, and what the caller is to compile if nobody else does."""
        given = tuple(sorted(options.items()))
        if step in self._same and (known := self._found.get((self._same[step], given))) is not None:
            return known, None
        began, target = time.perf_counter(), as_target(self._target)
        stage = target.jit(step).lower(*target.place(self._values))
        _, _, text = stage.as_text().partition("\n")  # the first line has the function's name
        shared = not any(mark in text for mark in _ELSEWHERE)
        self._same[step] = hashlib.sha256(text.encode()).digest() if shared else step
        key = self._same[step], given
        if key in self._found:
            return self._found[key], None
        self._found[key] = Future()
        return self._found[key], _Lowered(stage, time.perf_counter() - began)


def _fulfil(found: Future[Compiled], lowered: _Lowered, options: Mapping[str, Any]) -> None:
    try:
        found.set_result(compile_lowered(lowered.stage, options, seconds=lowered.seconds))
    except Exception as error:  # whoever asks raises it
        found.set_exception(error)
