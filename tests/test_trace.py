"""Arguments in, gradients out: whatever a loss may be called with, in the form that `jax.value_and_grad` would give it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_lab as rl
from remat_lab.trace import Loss

X = jnp.linspace(0.1, 1.0, 8)


def planned(fun, *args, **options):
    """The keep-all step of a loss, run on the arguments that it was planned for."""
    names = {"argnums", "has_aux", "static_argnums", "static_argnames"}
    kwargs = {key: options.pop(key) for key in list(options) if key not in names}
    return rl.plan(fun, *args, **options, **kwargs).value_and_grad()(*args, **kwargs)


def assert_same(expected, actual):
    """Equal structures, types and values."""
    assert jax.tree.structure(expected) == jax.tree.structure(actual)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        assert (np.shape(a), a.dtype) == (np.shape(b), b.dtype)
        if a.dtype != jax.dtypes.float0:
            wide = np.complex128 if jnp.iscomplexobj(a) else np.float64
            np.testing.assert_allclose(np.asarray(b).astype(wide), np.asarray(a).astype(wide), rtol=1e-6)


def moded(x, mode="sin", *, twice=False):
    y = {"sin": jnp.sin, "cos": jnp.cos}[mode](x)
    return jnp.sum(y * y if twice else y)


@pytest.mark.parametrize(
    ("args", "kwargs", "options"),
    [
        pytest.param(("cos",), {}, {}, id="strings need no declaration"),
        pytest.param((), {"mode": "cos"}, {"static_argnums": 1}, id="declared by position, passed by keyword"),
        pytest.param(("cos",), {}, {"static_argnames": "mode"}, id="declared by name, passed by position"),
        pytest.param((), {}, {"static_argnums": (1,)}, id="declared, left to its default"),
        pytest.param((), {"twice": True}, {"static_argnames": ("mode", "twice")}, id="keyword-only"),
        pytest.param(("cos",), {"twice": True}, {}, id="booleans need no declaration"),
        pytest.param(("cos",), {}, {"static_argnums": -2}, id="counted from the end"),
    ],
)
def test_a_static_argument_may_be_passed_in_any_way(args, kwargs, options):
    assert_same(jax.value_and_grad(partial(moded, **kwargs))(X, *args), planned(moded, X, *args, **kwargs, **options))


def test_a_declared_number_reaches_the_loss_as_a_number():
    def loss(x, n):
        for _ in range(n):
            x = jnp.sin(x)
        return jnp.sum(x)

    expected = jax.value_and_grad(loss)(X, 3)
    assert_same(expected, planned(loss, X, 3, static_argnums=1))
    assert_same(expected, planned(loss, X, n=3, static_argnames="n"))
    with pytest.raises(TypeError):
        planned(loss, X, 3)  # traced, as by jax.jit


def test_functions_among_the_leaves_of_a_module_are_static():
    model = {"w": jnp.eye(8), "activation": jnp.tanh, "name": "dense"}
    value, gradient = planned(lambda m, x: jnp.sum(m["activation"](x @ m["w"]) ** 2), model, X)
    expected = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(X @ w) ** 2))(model["w"])
    assert_same(expected, (value, gradient["w"]))
    assert gradient["activation"] is None
    assert gradient["name"] is None


def test_none_and_empty_containers_keep_their_places_in_the_gradient():
    def loss(params, batch):
        h = jnp.sin(batch["x"] @ params["w"])
        return jnp.sum(jnp.sin(h if batch["mask"] is None else h * batch["mask"])) + (1.0 if params["extra"] else 0.0)

    params = {"w": jnp.eye(8), "extra": (), "b": None, "nested": [{}, {"v": jnp.ones(())}]}
    batch = {"x": X[None], "mask": None}
    assert_same(jax.value_and_grad(loss)(params, batch), planned(loss, params, batch))


@pytest.mark.parametrize("empty", [(), None, {}, [None]])
def test_an_empty_argument_gets_an_empty_gradient_and_not_that_of_another_argument(empty):
    def loss(w, nothing, x):
        return jnp.sum(jnp.sin(w * x))

    args = (jnp.ones(8), empty, X)
    for argnums in ((0, 1), (1, 0), (1, 2), (2, 1, 0)):
        assert_same(jax.value_and_grad(loss, argnums)(*args), planned(loss, *args, argnums=argnums))


@pytest.mark.parametrize("argnums", [0, 1, -1, (0,), (1, 0), (0, -1), [0, 1]])
def test_argnums_take_every_form_that_jax_takes(argnums):
    def loss(a, b, c):
        return jnp.sum(jnp.sin(a["p"]) * b * jnp.cos(c[0]) + a["q"])

    args = ({"p": X, "q": 2 * X}, 3 * X, [4 * X])
    jax_argnums = tuple(argnums) if isinstance(argnums, list) else argnums
    assert_same(jax.value_and_grad(loss, jax_argnums)(*args), planned(loss, *args, argnums=argnums))


def test_integers_and_keys_get_the_gradients_of_allow_int():
    def loss(embedding, ids, key):
        noise = jax.random.normal(key, (4, 8))
        return jnp.sum(jnp.sin(embedding[ids] + noise))

    args = (jnp.ones((16, 8)), jnp.arange(4), jax.random.key(3))
    value, gradients = planned(loss, *args, argnums=(0, 1, 2))
    expected = jax.value_and_grad(loss, (0, 1, 2), allow_int=True)(*args)
    assert gradients[1].dtype == jax.dtypes.float0
    assert gradients[2].dtype == jax.dtypes.float0
    assert gradients[2].shape == ()
    assert_same(expected[0], value)
    assert_same(expected[1][:2], gradients[:2])


def test_old_style_keys_are_integers_like_any_other():
    def loss(x, key):
        return jnp.sum(jnp.where(jax.random.bernoulli(key, 0.5, x.shape), jnp.sin(x), 0.0))

    args = (X, jax.random.PRNGKey(1))
    assert_same(jax.value_and_grad(loss)(*args), planned(loss, *args))


def test_aux_may_hold_anything():
    def loss(x):
        return jnp.sum(jnp.sin(x)), {"x": x, "view": x.reshape(2, 4), "name": "loss", "none": None, "n": 3, "fun": jnp.sin}

    (value, aux), gradient = planned(loss, X, has_aux=True)
    assert_same(jax.value_and_grad(lambda x: jnp.sum(jnp.sin(x)))(X), (value, gradient))
    assert_same({"x": X, "view": X.reshape(2, 4)}, {"x": aux["x"], "view": aux["view"]})
    assert (aux["name"], aux["none"], aux["fun"]) == ("loss", None, jnp.sin)
    assert type(aux["n"]) is type(X), "a number comes back as an array, not as a wrapper of JAX's own"
    assert aux["n"] == 3


def test_an_empty_aux_is_still_an_aux():
    (value, aux), _ = planned(lambda x: (jnp.sum(jnp.sin(x)), ()), X, has_aux=True)
    assert aux == ()
    assert value == jnp.sum(jnp.sin(X))


def test_arrays_that_the_loss_closes_over_are_read_at_each_call():
    box = {"w": jnp.ones(8)}

    def loss(x):
        return jnp.sum(jnp.sin(x * box["w"]))

    step = rl.plan(loss, X).value_and_grad()
    for w in (jnp.zeros(8), jnp.full(8, 3.0, jnp.float32)):
        box["w"] = w
        assert_same(jax.value_and_grad(loss)(X), step(X))


def test_a_loss_may_close_over_what_an_outer_jit_traces():
    def loss(w, x):
        return jnp.sum(jnp.sin(jnp.sin(x * w)))

    def outer(w):
        inner = partial(loss, w)
        return rl.plan(inner, X).value_and_grad()(X), rl.value_and_grad(inner, budget=10**6)(X)

    with jax.checking_leaks():
        found = jax.jit(outer)(2.0)
    assert_same((jax.value_and_grad(partial(loss, 2.0))(X),) * 2, found)


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f))], ids=["grad", "jit(grad)"])
def test_differentiating_through_what_a_loss_closes_over_is_refused_in_words(transform):
    def outer(w):
        return rl.plan(lambda x: jnp.sum(jnp.sin(x * w)), X).value_and_grad()(X)[0]

    with pytest.raises(rl.InvalidLoss, match="cannot be differentiated again"):
        transform(outer)(2.0)


def test_a_plan_keeps_neither_arrays_nor_tracers_alive():
    big = jnp.ones(8)
    plan = rl.plan(lambda x: jnp.sum(jnp.sin(x * big)), X)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in plan.call.values)
    assert not plan.program.constants


def test_planning_allocates_nothing_of_the_arguments_size():
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)  # 4 TiB
    plan = rl.plan(lambda w, x: jnp.sum(jnp.sin(jnp.sin(x @ w))), huge, huge)
    assert plan.predicted.peak_bytes >= 4 << 40


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_a_python_number_does_not_widen_the_result(dtype):
    def loss(x, s):
        return jnp.sum(jnp.sin(x * s))

    args = (X.astype(dtype), 2.0)
    found = planned(loss, *args)
    assert found[0].dtype == found[1].dtype == dtype
    assert_same(jax.jit(jax.value_and_grad(loss))(*args), jax.jit(rl.plan(loss, *args).value_and_grad())(*args))


def test_a_python_number_and_an_array_of_its_type_are_planned_apart():
    def loss(x, s):
        return jnp.sum(jnp.sin(x * jnp.asarray(s, x.dtype)))

    step = rl.value_and_grad(loss, budget=10**6)
    x = X.astype(jnp.bfloat16)
    assert step(x, 2.0)[0].dtype == step(x, jnp.float32(2.0))[0].dtype == jnp.bfloat16
    assert len(step.plans) == 2


def test_complex_parameters_follow_jaxs_convention():
    z = jax.lax.complex(X, X[::-1])

    def loss(z):
        return jnp.sum(jnp.abs(jnp.sin(z)) ** 2)

    assert_same(jax.value_and_grad(loss)(z), planned(loss, z))


def test_a_loss_that_ignores_its_parameters_has_zero_gradients():
    assert_same((jnp.float32(2.0), jnp.zeros(8)), planned(lambda x: 2.0, X))


def test_keyword_arguments_are_traced_too():
    def loss(x, *, scale):
        return jnp.sum(jnp.sin(x)) * scale

    jaxpr = Loss(loss).trace(Loss(loss).call((X,), {"scale": jnp.float32(3)})).jaxpr
    assert len(jaxpr.invars) == 2
    assert_same(jax.value_and_grad(loss)(X, scale=jnp.float32(3)), planned(loss, X, scale=jnp.float32(3)))


def test_a_losss_own_keywords_do_not_collide_with_options():
    def loss(x, *, seed, budget):
        return jnp.sum(jnp.sin(x)) * seed * budget

    kwargs = {"seed": jnp.float32(3), "budget": jnp.float32(2)}
    step = rl.value_and_grad(loss, budget=10**6, seed=1)
    assert_same(jax.value_and_grad(loss)(X, **kwargs), step(X, **kwargs))


@pytest.mark.parametrize(
    ("fun", "args", "options", "message"),
    [
        pytest.param(jnp.sin, (X,), {}, r"sin must return one scalar loss, but it returned float32\[8\]", id="vector"),
        pytest.param(lambda x: {"loss": jnp.sum(x)}, (X,), {}, "returned a dict", id="dict"),
        pytest.param(lambda x: None, (X,), {}, "returned a NoneType", id="no return"),
        pytest.param(lambda x: (jnp.sum(x), x), (X,), {}, "Did you mean has_aux=True", id="aux not declared"),
        pytest.param(lambda x: jnp.sum(x), (X,), {"has_aux": True}, r"must return \(loss, aux\)", id="no aux"),
        pytest.param(lambda x: (jnp.sum(x), 1, 2), (X,), {"has_aux": True}, "a tuple of 3", id="aux of three"),
        pytest.param(lambda x: jnp.sum(x).astype(jnp.int32), (X,), {}, "real floating-point loss.*int32", id="integer"),
        pytest.param(lambda x: jnp.sum(x).astype(jnp.complex64), (X,), {}, "real floating-point loss.*complex64", id="complex"),
        pytest.param(
            lambda n: jnp.sum(n) * 1.0, (jnp.arange(3),), {}, r"nothing to differentiate.*n: int32\[3\]", id="integers"
        ),
        pytest.param(lambda x: jnp.sum(x), ((),), {}, "nothing to differentiate.*no arrays", id="empty"),
        pytest.param(lambda x, flag: jnp.sum(x), (X, True), {"argnums": 1}, "nothing to differentiate", id="static"),
        pytest.param(lambda x: x, (jnp.float32(1),), {}, "computes nothing", id="identity"),
    ],
)
def test_what_is_not_a_loss_is_refused_in_words(fun, args, options, message):
    with pytest.raises(rl.InvalidLoss, match=message):
        rl.plan(fun, *args, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"argnums": 2}, "argnums=2 names argument 2 of moded, but 1 were passed"),
        ({"argnums": (0, -2)}, "names argument -2 of moded"),
        ({"static_argnums": 7}, "static_argnums names argument 7 of moded, which takes 3"),
        ({"static_argnames": ("mode", "modes")}, r"static_argnames names \['modes'\], but moded takes"),
        ({"costs": "joules"}, "costs='joules' is unknown"),
        ({"solver": "magic"}, "there is no solver 'magic'"),
    ],
)
def test_what_is_not_an_option_is_refused_in_words(options, message):
    with pytest.raises(rl.InvalidArgument, match=message):
        rl.plan(moded, X, **options)


@pytest.mark.parametrize("make", [rl.plan, partial(rl.value_and_grad, budget=0.5)])
def test_only_functions_are_losses(make):
    with pytest.raises(rl.InvalidArgument, match="the loss, a function; got ArrayImpl"):
        make(X)
