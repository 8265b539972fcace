"""The decorator: functions, methods, callables and modules that recompute instead of keeping, under a budget or a policy."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from remat_lab.call import Call, Static
from remat_lab.checkpointing import Plans
from remat_lab.errors import InvalidArgument
from remat_lab.region import Options, run
from remat_lab.saved import saved
from remat_lab.trace import Loss


def remat(
    fun: Any = None,
    /,
    *,
    budget: int | float | str | None = None,
    solver: str = "auto",
    policy: Callable[..., Any] | None = None,
    save: str | Sequence[str] = (),
    dont_save: str | Sequence[str] = (),
    must_save: Any = (),
    must_recompute: Any = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    methods: str | Sequence[str] = "__call__",
    check: str = "planned",
    time_limit: float = 20.0,
    seed: int = 0,
) -> Any:
    """Makes a function recompute values in the backward pass instead of keeping them: `@rl.remat` or `@rl.remat(budget=0.5)`.

    Works on functions, methods, callables, `flax.linen` and `flax.nnx` Modules (classes, instances, methods), on methods of
    Equinox modules and inside Haiku transforms. It changes no parameter's name, no random stream, no state: the results are
    those without it, and so are checkpoints. The function's Python code runs once per call, also where the plan recomputes.

    With `budget` it is planned when it is first traced for a set of shapes and static values. Otherwise everything in it is
    recomputed, as with `jax.checkpoint`, but for what `policy`, `save` or `dont_save` say. Unordered `jax.debug` callbacks may
    run once more when they are recomputed. Mutable references are read before and written after the function, once.

    Booleans, strings, None, functions and other leaves that are not arrays are static, wherever they are in the arguments.

    Args:
        fun: what to decorate; with options alone, a decorator is returned.
        budget: of this function's own forward and backward pass: int bytes, a string with a unit, or a fraction of the peak
            when everything is kept.
        solver: what plans; see `plan`.
        policy: of `jax.checkpoint`, instead of a budget.
        save: the `checkpoint_name`s to save, and nothing else.
        dont_save: the `checkpoint_name`s not to save, when everything else is; neither the values nor aliases of them are kept.
        must_save: names, or a predicate, of what a plan keeps.
        must_recompute: names, or a predicate, of what a plan recomputes.
        static_argnums: arguments not to trace; in a method, and in all of `flax.linen`, `self` is number 0.
        static_argnames: the same by name. Either way they may be passed by position, by keyword, or not at all.
        methods: of a Module class or instance, which to decorate.
        check: "planned" trusts the prediction, and leaves a function alone that needs no recomputation by it, whatever XLA then
            makes of it. "compiled" compiles the function's forward and backward pass when it is first
            traced, under XLA:CPU's memory scheduler or the device's own options, and plans again for less until the budget is
            held; that takes as long as compiling it does, once for each set of shapes and attempt.
        time_limit: seconds for the search, for each set of shapes; it ends by itself long before for all but huge functions.
        seed: of the solver.

    Returns:
        The decorated object. A decorated function's attribute `saved(*args)` lists what it keeps, as `rl.saved` does, and
        `plans` those made so far, with their `peak_bytes`.

    Raises:
        InvalidArgument: for options that exclude each other, and, when called, for names that do not occur and for policies
            whose answer is none.
        UnsupportedEffect: when called, if it contains a side effect that must not be repeated.

    Example:
        >>> import jax, jax.numpy as jnp, remat_lab as rl
        >>> @rl.remat(static_argnames="power")
        ... def block(x, power=2):
        ...     return jnp.sum(jnp.sin(jnp.sin(x)) ** power)
        >>> jax.grad(block)(jnp.ones(2), power=3).shape
        (2,)
    """
    options = Options(
        budget=budget,
        solver=solver,
        policy=policy,
        save=save,  # type: ignore[arg-type]  # Options makes tuples of names
        dont_save=dont_save,  # type: ignore[arg-type]
        must_save=must_save,
        must_recompute=must_recompute,
        time_limit=time_limit,
        seed=seed,
        check=check,
    )
    statics = (_as_tuple(static_argnums), _as_tuple(static_argnames))

    def decorate(target: Any) -> Any:
        return _decorate(target, options, statics, _as_tuple(methods))

    return decorate if fun is None else decorate(fun)


def _decorate(target: Any, options: Options, statics: tuple[Any, Any], methods: tuple[str, ...]) -> Any:
    if isinstance(target, staticmethod | classmethod):
        return type(target)(_decorate(target.__func__, options, statics, methods))
    kind = target.func if isinstance(target, functools.partial) and isinstance(target.func, type) else target
    framework = _framework_of(kind)
    if framework is not None:
        wrap = functools.partial(Decorated, options=options, statics=statics)
        if isinstance(target, functools.partial):  # a class with some of its fields
            return functools.partial(framework.decorate_class(kind, wrap, methods), *target.args, **target.keywords)
        decorate = framework.decorate_class if isinstance(target, type) else framework.decorate_instance
        return decorate(target, wrap, methods)
    if inspect.ismethod(target) and _framework_of(target.__self__) is not None:
        static_argnums = tuple(n + 1 if n >= 0 else n for n in statics[0])  # self is not counted, as in its signature
        method = Decorated(target.__func__, options, (static_argnums, statics[1])).function()
        return types.MethodType(method, target.__self__)
    if isinstance(target, type):
        raise InvalidArgument(
            f"rl.remat decorates the classes of flax.linen and flax.nnx Modules; of {target.__name__} decorate the method, "
            "as in `@rl.remat` above `def __call__`"
        )
    if not callable(target):
        advice = " Did you mean rl.remat(budget=...)?" if isinstance(target, int | float | str) else ""
        raise InvalidArgument(f"rl.remat decorates functions, methods and Modules, not {target!r}.{advice}")
    return Decorated(target, options, statics).function()


def _framework_of(target: Any) -> Any | None:
    """The adapter for a Module class or instance; frameworks that nobody imported are not imported here."""
    cls = target if isinstance(target, type) else type(target)
    if "flax.linen" in sys.modules:
        from remat_lab import linen

        if linen.is_module_class(cls):
            return linen
    if "flax.nnx" in sys.modules:
        from remat_lab import nnx

        if nnx.is_module_class(cls):
            return nnx
    return None


class Decorated:
    """A function with its options, and the ways to call it.

    Attributes:
        fun: the user's function.
        options: of the decorator.
        plans: made so far, for each set of shapes and static values.
    """

    def __init__(self, fun: Callable[..., Any], options: Options, statics: tuple[Any, Any]):
        self.fun, self.options = fun, options
        self._loss = Loss(fun, static_argnums=statics[0], static_argnames=statics[1])
        self.plans = Plans()

    @property
    def name(self) -> str:
        """Of the function, for messages."""
        return getattr(self.fun, "__qualname__", None) or self._loss.name

    def function(self) -> Callable[..., Any]:
        """A plain function, so that it binds as a method."""
        is_function = inspect.isroutine(self.fun) or isinstance(self.fun, functools.partial)

        @functools.wraps(self.fun, updated=("__dict__",) if is_function else ())
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return self._dispatch(wrapper, args, kwargs)

        wrapper.saved = functools.partial(saved, wrapper)  # type: ignore[attr-defined]
        wrapper.plans = self.plans  # type: ignore[attr-defined]
        wrapper.method_handler_wrapped = True  # type: ignore[attr-defined]  # flax.linen: `linen.call_method` does that
        return wrapper

    def of(self, fun: Callable[..., Any], plan: bool) -> Decorated:
        """The same options for a function that stands for this one in a framework; without a plan unless `plan`."""
        options = self.options if plan else self.options.without_plan()
        other = Decorated(fun, options, (self._loss.static_argnums, self._loss.static_argnames))
        other.plans = self.plans
        return other

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_leaf: Callable[[Any], bool] | None = None) -> Call:
        """Arguments split into traced and static ones.

        Raises:
            InvalidArgument: if an array is declared static, or a static argument does not exist.
        """
        call = self._loss.split(args, kwargs, is_leaf)
        for path, leaf in zip(call.paths, call.leaves, strict=True):
            if isinstance(leaf, Static) and isinstance(leaf.value, jax.Array | np.ndarray):
                found = "is traced by a transformation around it" if isinstance(leaf.value, jax.core.Tracer) else "is an array"
                declared = f"static_argnums={self._loss.static_argnums}, static_argnames={self._loss.static_argnames}"
                raise InvalidArgument(f"{declared} of {self.name} names {path}, but that {found}. {self._positions()}")
        return call

    def run(self, body: Callable[..., Any], *calls: Call, plan: bool = True) -> Any:
        """Runs `body` on the traced leaves of some calls, so that it can be recomputed; without a plan unless `plan`."""
        return run(
            self.options if plan else self.options.without_plan(),
            body,
            [value for c in calls for value in c.values],
            name=self.name,
            paths=[path for c in calls for path in c.paths_of_values],
            hint=self._hint,
            plans=self.plans,
        )

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function with pytrees of arrays and static leaves."""
        call = self.split(args, kwargs)

        def body(*values: Any) -> Any:
            args, kwargs = call.rebuild(values)
            return self.fun(*args, **kwargs)

        return self.run(body, call)

    def _dispatch(self, wrapper: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        guard: Any = contextlib.nullcontext()
        if "flax.linen" in sys.modules:
            from remat_lab import linen

            if args and linen.is_bound(args[0]):
                return linen.call_method(self, wrapper, args, kwargs)
            guard = linen.no_leaks(self.name)
        if "flax.nnx" in sys.modules:
            from remat_lab import nnx

            if nnx.holds_nodes((args, kwargs)):
                return nnx.call(self, args, kwargs)
        if "haiku" in sys.modules:
            from remat_lab import haiku

            if haiku.inside_transform():
                return haiku.call(self, args, kwargs)
        with guard:
            return self.plain(*args, **kwargs)

    def _positions(self) -> str:
        parameters = self._loss.parameters
        numbered = ", ".join(f"{name} is index {n}" for n, name in enumerate(parameters))
        return f"Arguments are counted from 0{', self included' if parameters[:1] == ['self'] else ''}: {numbered}."

    def _hint(self, argument: str) -> str:
        return (
            f"rl.remat traces {argument} of {self.name}, so Python cannot decide by its value. Pass a Python bool, which is "
            "never traced, or declare the argument static, with static_argnums= or static_argnames=. If jax.jit or another "
            f"transformation around it traces the argument already, make it static there too. {self._positions()}"
        )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, int | str) else tuple(value)
