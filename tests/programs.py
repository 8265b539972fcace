"""Random JAX losses: a chain of steps over a pool of arrays, drawn by hypothesis and written out as plain data.

A `Program` is data, so that it shrinks, prints itself and can be pasted into a test. Every step makes one array [rows, columns]
from two earlier ones; whatever is interesting (other shapes, types, loops, branches, rules) happens inside. The steps squash
what they make, so that rounding errors stay rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name

Array = jax.Array


class Around(NamedTuple):
    """What the steps of a program share: parameters, and arguments that are not differentiated."""

    params: dict[str, Array]
    ids: Array
    scale: Any
    key: Array
    position: int

    def of(self, name: str, like: Array) -> Array:
        return self.params[name].astype(like.dtype)

    @property
    def own_key(self) -> Array:
        return jax.random.fold_in(self.key, self.position)


class Step(NamedTuple):
    """One step: its kind, the two operands as distances back in the pool, and a variant."""

    kind: str
    first: int = 0
    second: int = 0
    variant: int = 0


@dataclass(frozen=True)
class Program:
    """A loss of `(params, x, ids, scale, key)`.

    Attributes:
        steps: in order; those that nothing reads are dead code.
        rows: of every array.
        columns: of every array; even.
        dtype: of parameters and input.
        loss_dtype: of the result.
        both: whether the input is differentiated too.
        aux: distances back in the pool of arrays that are returned beside the loss; None for no aux.
        summed: distances back in the pool of arrays whose means the loss adds.
        generator: of the random key; "words" for an old-style one.
        fraction: of the keep-all peak that the budget is.
    """

    steps: tuple[Step, ...]
    rows: int = 8
    columns: int = 16
    dtype: str = "float32"
    loss_dtype: str = "float32"
    both: bool = False
    aux: tuple[int, ...] | None = None
    summed: tuple[int, ...] = (0,)
    generator: str = "threefry2x32"
    fraction: float = 0.7

    @property
    def argnums(self) -> int | tuple[int, ...]:
        return (0, 1) if self.both else 0

    @property
    def has_aux(self) -> bool:
        return self.aux is not None

    def args(self) -> tuple[Any, ...]:
        """Real arguments, the same each time."""
        rng, d = np.random.default_rng(7), self.columns

        def normal(*shape: int) -> Array:
            return jnp.asarray(rng.normal(size=shape) / 2, self.dtype)

        shapes = {"square": (d, d), "up": (d, 2 * d), "down": (2 * d, d), "kernel": (3, 2, 2), "row": (d,), "table": (5, d)}
        params = {name: normal(*shape) for name, shape in shapes.items()} | {"stack": normal(3, d, d), "unused": normal(2)}
        seed = jax.random.PRNGKey(3) if self.generator == "words" else jax.random.key(3, impl=self.generator)
        return params, normal(self.rows, d), jnp.asarray(rng.integers(0, 5, self.rows), jnp.int32), 0.75, seed

    def loss(self, params: dict[str, Array], x: Array, ids: Array, scale: Any, key: Array) -> Any:
        pool = [x]
        for position, step in enumerate(self.steps):
            a, b = pool[-1 - step.first % len(pool)], pool[-1 - step.second % len(pool)]
            made = KINDS[step.kind](Around(params, ids, scale, key, position), a, b.astype(a.dtype), step.variant)
            assert made.shape == x.shape, step
            pool.append(made)
        ramp = jnp.linspace(0.5, 1.5, self.columns)
        terms = [jnp.mean(pool[-1 - i % len(pool)].astype(ramp.dtype) * ramp[None]) for i in self.summed]
        value = sum(terms[1:], terms[0]).astype(self.loss_dtype)
        if self.aux is None:
            return value
        return value, {"arrays": [pool[-1 - i % len(pool)] for i in self.aux], "ids": ids + 1, "none": None}


KINDS: dict[str, Callable[[Around, Array, Array, int], Array]] = {}


def kind(*variants: str) -> Callable[[Any], Any]:
    """Registers a function of (around, a, b, variant) as a kind of step."""

    def register(fun: Any) -> Any:
        KINDS[fun.__name__.lstrip("_")] = lambda around, a, b, n: fun(around, a, b, variants[n % len(variants)])
        return fun

    return register


UNARY: dict[str, Callable[[Array], Array]] = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "logistic": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "exp": lambda x: jnp.exp(-jnp.abs(x)),
    "root": lambda x: jnp.sqrt(1 + x * x),
    "log1p": lambda x: jnp.log1p(x * x),
    "power": lambda x: jnp.tanh(x) ** 3,
    "erf": jax.scipy.special.erf,
    "select": lambda x: jnp.where(x > 0, x, 0.25 * x),
    "stop": lambda x: lax.stop_gradient(x) + 0.5 * x,
    "copy": lambda x: x[::-1][::-1].T.T + 0,
}


@kind(*UNARY)
def elementwise(c, a, b, how):
    return UNARY[how](a)


@kind("add", "sub", "gate", "max", "ratio", "angle", "where")
def binary(c, a, b, how):
    return {
        "add": lambda: (a + b) / 2,
        "sub": lambda: a - 0.5 * b,
        "gate": lambda: a * jax.nn.sigmoid(b),
        "max": lambda: jnp.maximum(a, b),
        "ratio": lambda: a / (1 + b * b),
        "angle": lambda: jnp.arctan2(a, 2 + b * b),
        "where": lambda: jnp.where(jnp.sin(a) < b, a, -b),
    }[how]()


@kind("argument", "literal", "integer", "row", "constant")
def weak(c, a, b, how):
    if how == "argument":
        return a * c.scale
    if how == "row":
        return a * c.of("row", a)[None] + 1
    if how == "constant":
        return a + jnp.asarray(np.arange(a.shape[1]) % 3, a.dtype)[None]
    return a * 0.5 + 1 if how == "literal" else a * (c.ids[:, None] + 1).astype(a.dtype) / 4


@kind("bfloat16", "float16", "float32", "round trip")
def cast(c, a, b, how):
    return jnp.sin(a.astype(jnp.bfloat16)).astype(a.dtype) if how == "round trip" else a.astype(how)


@kind("mean", "softmax", "logsumexp", "norm", "max", "cumsum", "prod", "both axes")
def reduction(c, a, b, how):
    if how == "norm":
        centred = a - jnp.mean(a, axis=1, keepdims=True)
        return centred * lax.rsqrt(jnp.mean(centred**2, axis=1, keepdims=True) + 0.1)
    if how == "softmax":
        return jax.nn.softmax(a, axis=1) * 4
    if how == "cumsum":
        return jnp.cumsum(a, axis=0) / a.shape[0]
    axes = (0, 1) if how == "both axes" else 1
    reduce = {"logsumexp": jax.nn.logsumexp, "max": jnp.max, "prod": jnp.prod}.get(how, jnp.mean)
    return a - jnp.tanh(reduce(jnp.tanh(a), axis=axes, keepdims=True)) + 0 * b


@kind("square", "transposed", "network", "attention", "batched", "gram")
def dot(c, a, b, how):
    n = a.shape[1]
    if how == "network":
        return jnp.tanh(jnp.tanh(a @ c.of("up", a)) @ c.of("down", a))
    if how == "attention":
        return jax.nn.softmax(a @ b.T / n, axis=1) @ b
    if how == "batched":
        pairs = jnp.einsum("rij,rjk->rik", a.reshape(a.shape[0], 2, n // 2), b.reshape(b.shape[0], n // 2, 2))
        return jnp.tile(jnp.tanh(pairs).reshape(a.shape[0], 4), (1, n // 4))
    if how == "gram":
        return jnp.tanh(a @ (a.T @ a) / n)
    w = c.of("square", a)
    return jnp.tanh(a @ (w.T if how == "transposed" else w) / 2)


@kind("plain", "strided", "grouped", "pool")
def convolution(c, a, b, how):
    image = a.reshape(a.shape[0], a.shape[1] // 2, 2)
    if how == "pool":
        image = lax.reduce_window(image, -jnp.inf, lax.max, (1, 3, 1), (1, 1, 1), "SAME")
        return image.reshape(a.shape)
    kernel, groups = c.of("kernel", a), 1
    if how == "grouped":
        kernel, groups = kernel[:, :1], 2
    stride = 2 if how == "strided" else 1
    numbers = ("NWC", "WIO", "NWC")
    out = lax.conv_general_dilated(image, kernel, (stride,), "SAME", dimension_numbers=numbers, feature_group_count=groups)
    return jnp.tanh(jnp.repeat(out, stride, axis=1).reshape(a.shape))


@kind("rows", "table", "along", "scatter", "set", "slice", "update", "concatenate")
def indexing(c, a, b, how):
    ids = c.ids % a.shape[0]
    return {
        "rows": lambda: a[ids],
        "table": lambda: a + c.of("table", a)[c.ids],
        "along": lambda: a + jnp.take_along_axis(b, c.ids[:, None] % a.shape[1], axis=1),
        "scatter": lambda: jnp.tanh(a.at[ids].add(b)),
        "set": lambda: a.at[0].set(b[-1]),
        "slice": lambda: lax.dynamic_update_slice(a, lax.dynamic_slice(b, (ids[0], 0), (1, a.shape[1])), (0, 0)),
        "update": lambda: jnp.sin(a).at[:, ::2].multiply(0.5),
        "concatenate": lambda: jnp.concatenate([a[:, 1:], b[:, :1]], axis=1),
    }[how]()


@kind("sort", "argsort", "top_k", "argmax", "compare", "round")
def discrete(c, a, b, how):
    if how == "sort":
        return jnp.sort(a, axis=1)
    if how == "argsort":
        return jnp.take_along_axis(b, jnp.argsort(a, axis=1), axis=1)
    if how == "top_k":
        best, where = lax.top_k(a, 2)
        return b.at[jnp.arange(a.shape[0])[:, None], where].add(best)
    if how == "argmax":
        return b * jax.nn.one_hot(jnp.argmax(a, axis=1), a.shape[1], dtype=a.dtype) + a
    return b[(a[:, 0] > 0).astype(jnp.int32)] if how == "compare" else jnp.round(a * 4) / 4 + b


@kind("weights", "reverse", "rows", "checkpointed", "unrolled", "while", "nested")
def loop(c, a, b, how):
    stack = c.of("stack", a)

    def layer(h, w):
        return jnp.tanh(h @ w), jnp.sum(h, axis=0)

    if how == "rows":
        return lax.scan(lambda h, row: (jnp.sin(h + row), h), b[0], a)[1]
    if how == "while":
        n = lax.while_loop(lambda n: n < c.ids[0] + 2, lambda n: n + 1, jnp.int32(0))
        return a * jnp.sin(n.astype(a.dtype))
    if how == "nested":
        return lax.fori_loop(0, 2, lambda _, h: lax.scan(layer, h, stack)[0], a)
    if how == "checkpointed":
        return lax.scan(jax.checkpoint(layer), a, stack)[0]
    h, sums = lax.scan(layer, a, stack, reverse=how == "reverse", unroll=2 if how == "unrolled" else 1)
    return h + jnp.tanh(sums[0])[None]


@kind("cond", "switch", "value")
def branch(c, a, b, how):
    w = c.of("square", a)
    if how == "switch":
        return lax.switch(c.ids[0] % 3, [jnp.sin, lambda x: jnp.tanh(x @ w), lambda x: x * 0.5], a)
    chosen = c.ids[0] > 1 if how == "cond" else jnp.sum(a) > 0
    return lax.cond(chosen, lambda x, y: jnp.tanh(x @ w) + y, lambda x, y: x - y, a, b)


@kind("bernoulli", "normal", "split", "uniform")
def random(c, a, b, how):
    if how == "normal":
        return a + 0.1 * jax.random.normal(c.own_key, a.shape, a.dtype)
    if how == "uniform":
        return a * jax.random.uniform(c.own_key, (a.shape[0], 1), a.dtype)
    key = jax.random.split(c.own_key)[1] if how == "split" else c.own_key
    return jnp.where(jax.random.bernoulli(key, 0.75, a.shape), a / 0.75, 0)


@jax.custom_vjp
def _halved(x):
    return x


_halved.defvjp(lambda x: (x, None), lambda _, g: (g / 2,))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _straight_through(x, n):
    return jnp.round(x * n) / n


_straight_through.defvjp(lambda x, n: (_straight_through(x, n), None), lambda n, _, g: (g,))


@jax.custom_vjp
def _fat(x, w):
    return jnp.sin(x @ w)


_fat.defvjp(
    lambda x, w: (jnp.sin(x @ w), (x, w, jnp.cos(x @ w))),
    lambda kept, g: ((g * kept[2]) @ kept[1].T, kept[0].T @ (g * kept[2])),
)


@jax.custom_jvp
def _clipped(x):
    return jnp.clip(x, -1, 1)


_clipped.defjvp(
    lambda primals, tangents: (_clipped(*primals), jnp.where(jnp.abs(primals[0]) <= 1, tangents[0], 0.25 * tangents[0]))
)


@kind("halved", "straight through", "fat", "clipped")
def rule(c, a, b, how):
    if how == "fat":
        return _fat(a, c.of("square", a))
    return {"halved": _halved, "straight through": lambda x: _straight_through(x, 4), "clipped": _clipped}[how](a)


@kind("checkpoint", "policy", "name", "jit", "vmap", "inner grad")
def transformed(c, a, b, how):
    w = c.of("square", a)

    def layer(x):
        return jnp.tanh(checkpoint_name(jnp.sin(x @ w), "inner")) + 0.5 * x

    if how == "policy":
        return jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names("inner"))(a)
    if how == "vmap":
        return jax.vmap(lambda x, y: jnp.tanh(w @ x) * jnp.sum(y) / 8)(a, b)
    if how == "inner grad":
        return jnp.tanh(jax.grad(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(b)))(a))
    return {"checkpoint": jax.checkpoint(layer), "name": layer, "jit": jax.jit(layer)}[how](a)


@kind("fft", "complex", "ref", "bits", "solve")
def other(c, a, b, how):
    if how == "ref":
        ref = jax.new_ref(jnp.sin(a))
        before = ref[...]
        ref[...] = before * b
        return jnp.tanh(ref[...] + before)
    wide = a.astype(jnp.float32) if a.dtype.itemsize < 4 else a
    if how == "fft":
        return jnp.tanh(jnp.fft.irfft(jnp.fft.rfft(wide, axis=1) * 0.5, n=a.shape[1], axis=1)).astype(a.dtype)
    if how == "complex":
        z = lax.complex(wide, b.astype(wide.dtype))
        return jnp.tanh(jnp.abs(z * jnp.conj(z) + 1j) - jnp.imag(jnp.sin(z))).astype(a.dtype)
    if how == "bits":
        counts = lax.population_count((jnp.abs(wide) * 100).astype(jnp.int32))
        return a + counts.astype(a.dtype) / 32
    square = c.params["square"].astype(wide.dtype)
    system = square @ square.T + 4 * jnp.eye(a.shape[1], dtype=wide.dtype)
    return jnp.linalg.solve(system, wide.T).T.astype(a.dtype)


@st.composite
def programs(draw: st.DrawFn, *, min_steps: int = 1, max_steps: int = 10) -> Program:
    """Any program of so many steps."""
    back = st.integers(0, 4)
    step = st.builds(Step, st.sampled_from(list(KINDS)), st.sampled_from([0, 0, 0, 1, 2]), back, st.integers(0, 12))
    rows, columns = draw(st.sampled_from([(8, 16), (3, 8), (16, 4)]))
    return Program(
        steps=tuple(draw(st.lists(step, min_size=min_steps, max_size=max_steps))),
        rows=rows,
        columns=columns,
        dtype=draw(st.sampled_from(["float32", "float32", "float32", "bfloat16"])),
        loss_dtype=draw(st.sampled_from(["float32", "float32", "bfloat16"])),
        both=draw(st.booleans()),
        aux=draw(st.none() | st.lists(back, max_size=2).map(tuple)),
        summed=tuple(draw(st.lists(back, min_size=1, max_size=2))),
        generator=draw(st.sampled_from(["threefry2x32", "threefry2x32", "words", "rbg"])),
        fraction=draw(st.sampled_from([0.3, 0.5, 0.7, 0.85, 0.95, 1.0])),
    )
