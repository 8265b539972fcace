"""Plans on disk: read back they are the same, and nothing else is ever replayed."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import remat_lab as rl
from remat_lab import stored
from remat_lab.structure import short, words

W = [jax.random.normal(jax.random.key(i), (16, 16)) / 4 for i in range(6)]
X = jax.random.normal(jax.random.key(9), (32, 16))
SHAPES = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (W, X))


def loss(ws, x, key, scale=2.0, *, square=True):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w)) * scale
        x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)
    x = x + jnp.max(x, axis=1, keepdims=True)
    return jnp.mean(x**2 if square else x), {"last": x}


KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def plan() -> rl.Plan:
    options: dict[str, Any] = {"static_argnames": "square", "has_aux": True, "argnums": (0, 1), "check": "planned"}
    return rl.plan(loss, *SHAPES, KEY, budget=0.7, solver="greedy", square=True, **options)


@pytest.fixture(scope="module")
def path(plan: rl.Plan, tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(file)
    return file


def test_a_plan_read_back_is_the_same_plan(plan, path):
    found = rl.load_plan(path, loss, W, X, KEY, square=True)
    assert found.schedule == plan.schedule
    assert found.solution == plan.solution
    assert found.fused.groups == plan.fused.groups
    assert found.graph == plan.graph
    assert found.predicted == plan.predicted
    assert (found.budget_bytes, found.check, found.reserved) == (plan.budget_bytes, plan.check, plan.reserved)
    assert found.summary() == plan.summary()
    results = [jax.jit(p.value_and_grad(), static_argnames="square")(W, X, KEY, square=True) for p in (found, plan)]
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(a, b)
    assert found.policy_plan.peak_bytes == plan.policy_plan.peak_bytes


def other_order(ws, x, key, scale=2.0, *, square=True):
    for w in ws:
        x = jnp.sin(jnp.cos(x @ w)) * scale
        x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)
    x = x + jnp.max(x, axis=1, keepdims=True)
    return jnp.mean(x**2 if square else x), {"last": x}


def other_constant(ws, x, key, scale=2.0, *, square=True):
    return loss(ws, x, key, scale, square=square)[0] * 3, {"last": x}


def other_parameter(ws, x, key, scale=2.0, *, square=True):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w)) * scale
        x = jnp.where(jax.random.bernoulli(key, 0.25, x.shape), x, 0)
    x = x + jnp.max(x, axis=1, keepdims=True)
    return jnp.mean(x**2 if square else x), {"last": x}


WRONG: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], str]] = {
    "another function": (
        other_order,
        (W, X, KEY),
        {},
        r"other_order is not the program.*equation \d+ is cos float32\[32,16\] at test_stored.* instead of sin ",
    ),
    "another literal": (
        other_parameter,
        (W, X, KEY),
        {},
        r"lt bool.* at test_stored.*, has operand 2 0\.25 \(float32\[\]\) instead of 0\.5 ",
    ),
    "another ending": (
        other_constant,
        (W, X, KEY),
        {},
        r"other_constant is not .* there is mul float32\[\] at test_stored.py:\d+ ",
    ),
    "another shape": (loss, (W, X[:4], KEY), {}, r"planned for x float32\[32, 16\].*here it is x float32\[4, 16\]"),
    "another type": (loss, (W, X.astype(jnp.bfloat16), KEY), {}, r"planned for x float32.*here it is x bfloat16"),
    "another weak type": (
        loss,
        (W, X, KEY, 2.0),
        {},
        r"planned for square not traced, but here it is scale float32\[\] \(weak\)",
    ),
    "another structure": (loss, (W[:4], X, KEY), {}, r"planned for ws\[4\] float32.*here it is x"),
    "another static value": (
        loss,
        (W, X, KEY),
        {"square": False},
        r"; the static value square is False instead of True\. Plan",
    ),
    "another generator": (loss, (W, X, jax.random.key(0, impl="rbg")), {}, r"planned for key key<fry>"),
}


@pytest.mark.parametrize("what", WRONG)
def test_anything_else_is_refused_with_what_differs(path, what):
    fun, args, options, message = WRONG[what]
    with pytest.raises(rl.PlanMismatch, match=message):
        rl.load_plan(path, fun, *args, **{"square": True, **options})


SQUARE = jnp.linspace(-1.0, 1.0, 256).reshape(16, 16)


def along(axis):
    return lambda x: jnp.sum(jnp.sin(jnp.cumsum(x, axis=axis)))


def looped(fun):
    return lambda x: jax.lax.scan(lambda c, _: (fun(c), None), jnp.sum(x), length=3)[0]


def chosen(*branches):
    return lambda x: jax.lax.cond(jnp.sum(x) > 0, *branches, jnp.sum(x))


def repeated(times):
    def fun(x):
        for _ in range(times):
            x = jnp.sin(x)
        return jnp.sum(x)

    return fun


def times(array):
    return lambda x: jnp.sum(jnp.sin(x) * array.astype(x.dtype))


CHANGED = {
    "a parameter": (
        along(0),
        along(1),
        r"cumsum float32\[16,16\] at test_stored.*, has parameter axis=1 instead of 0\. Plan again",
    ),
    "the body of a loop": (
        looped(jnp.sin),
        looped(jnp.tanh),
        r"equation \d+, (scan|while) .*test_stored.py:\d+ .*, has another body: equation \d+ is tanh .* instead of sin ",
    ),
    "a branch": (chosen(jnp.sin, jnp.cos), chosen(jnp.sin, jnp.exp), r", cond .*, has another body: .*exp.* instead of "),
    "one equation more": (repeated(2), repeated(3), r"there is sin .* at test_stored.py:\d+ .* that the plan does not have"),
    "one equation less": (repeated(3), repeated(2), r"there is no sin .* at test_stored.py:\d+ .* that the plan has"),
    "the dtype of an array": (
        times(jnp.ones((16, 16), jnp.int8)),
        times(jnp.ones((16, 16), jnp.int16)),
        r"an array that it closes over, read by convert_element_type .*, has dtype int16 instead of int8",
    ),
    "the shape of an array": (
        times(jnp.ones((16, 1), jnp.int8)),
        times(jnp.ones((1, 16), jnp.int8)),
        r"an array that it closes over, read by .*, has shape \[1, 16\] instead of \[16, 1\]",
    ),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_differs_in_another_program_is_said(what, tmp_path):
    before, after, message = CHANGED[what]
    file = tmp_path / "plan.json"
    rl.plan(before, SQUARE, check="planned").save(file)
    assert rl.load_plan(file, before, SQUARE).value_and_grad()(SQUARE)
    with pytest.raises(rl.PlanMismatch, match=message) as caught:
        rl.load_plan(file, after, SQUARE)
    assert "lambda ;" not in str(caught.value), "never a whole jaxpr"
    assert len(str(caught.value)) < 600 + len(str(file))


def test_long_static_values_are_shortened_around_what_differs(tmp_path):
    def scaled(x, settings):
        return jnp.sum(jnp.sin(x) * settings["scale"])

    file, many = tmp_path / "plan.json", {f"{k}": k for k in range(9)}
    rl.plan(scaled, X, {**many, "scale": 2.0}, static_argnums=1, check="planned").save(file)
    with pytest.raises(
        rl.PlanMismatch, match=r"operand 2 3\.0 .* instead of 2\.0 .*; the static value settings is \.\.\..*'scale': 3\.0} "
    ):
        rl.load_plan(file, scaled, X, {**many, "scale": 3.0})
    assert rl.load_plan(file, scaled, X, {**many, "scale": 2.0})  # an equal one says the same
    rl.plan(scaled, X, {**many, "scale": 2.0, "rest": "-" * 10**4}, static_argnums=1, check="planned").save(file)
    assert "-" * 1000 not in file.read_text()


def as_version_1(plan, path):
    """Writes a plan as it was written before there were outlines: a hash and a place of each line, no constants."""
    plan.save(path)
    body = json.loads(path.read_text())["body"]
    lines = words(plan.program, constants=False)
    body["program"] = {
        "hash": stored.digest(lines),
        "lines": [short(line) for line in lines],
        "names": [f"{q.name} at {q.source_line.rsplit('/', 1)[-1]}" for q in plan.program.equations],
    }
    del body["static"]
    sealed = {"format": stored.FORMAT, "version": 1, "digest": stored.digest([stored._canonical(body)]), "body": body}
    path.write_text(json.dumps(sealed))


def test_files_of_version_1_are_read_and_refused_as_they_were(plan, tmp_path):
    file = tmp_path / "old.json"
    as_version_1(plan, file)
    assert rl.load_plan(file, loss, W, X, KEY, square=True).schedule == plan.schedule
    with pytest.raises(
        rl.PlanMismatch, match=r"other_order is not .*old.json.* equation 2 is cos at test_stored.*planned was sin"
    ):
        rl.load_plan(file, other_order, W, X, KEY, square=True)
    closing = times(jnp.ones((16, 16), jnp.int8))
    as_version_1(rl.plan(closing, SQUARE, check="planned"), file)
    assert rl.load_plan(file, closing, SQUARE).verify(SQUARE).bitwise


@pytest.mark.parametrize(("setting", "value"), [("jax_threefry_partitionable", False), ("jax_default_prng_impl", "rbg")])
def test_other_settings_of_jax_are_refused(path, setting, value):
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    try:
        with pytest.raises(rl.PlanMismatch, match=f"planned with {setting}={before}, here it is {value}"):
            rl.load_plan(path, loss, W, X, KEY, square=True)
    finally:
        jax.config.update(setting, before)


def test_damaged_files_are_clear_errors(path, tmp_path):
    text = path.read_text()
    data = json.loads(text)
    cut = {**data, "body": {**data["body"], "order": data["body"]["order"][:-1]}}
    damaged = {
        "cut off": (text[: len(text) // 2], "not JSON"),
        "changed": (json.dumps(cut), "digest"),
        "another version": (json.dumps({**data, "version": 99}), "version 99, this remat_lab reads 1 and 2"),
        "something else": (json.dumps([1, 2]), "holds no plan"),
        "empty": ("", "not JSON"),
    }
    for kind, (content, message) in damaged.items():
        file = tmp_path / f"{kind}.json"
        file.write_text(content)
        with pytest.raises(rl.InvalidPlanFile, match=message):
            rl.load_plan(file, loss, W, X, KEY, square=True)
    with pytest.raises(rl.InvalidPlanFile, match="cannot read"):
        rl.load_plan(tmp_path / "absent.json", loss, W, X, KEY, square=True)


def tiny(w, x):
    return jnp.sum(jnp.sin(jnp.sin(x @ w) @ w))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("plans") / "tiny.json"
    rl.plan(tiny, W[0], X, check="planned").save(file)
    return file


@hypothesis.settings(max_examples=150, database=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=st.data())
def test_no_damage_goes_unnoticed(small, data):
    """Cut off, a piece missing, a bit or a byte changed anywhere: a clear error, or what was saved."""
    content = small.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1), label="at")
    kind = data.draw(st.sampled_from(["cut off", "missing", "bit", "byte"]), label="kind")
    if kind == "cut off":
        damaged = content[:at]
    elif kind == "missing":
        damaged = content[:at] + content[at + data.draw(st.integers(1, 200)) :]
    elif kind == "bit":
        damaged = content[:at] + bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :]
    else:
        damaged = content[:at] + bytes([data.draw(st.integers(0, 255))]) + content[at + 1 :]
    file = small.with_name("damaged.json")
    file.write_bytes(damaged)
    with contextlib.suppress(ValueError):
        hypothesis.assume(json.loads(damaged) != json.loads(content))
    with pytest.raises(rl.InvalidPlanFile, match=r"damaged|holds no plan|has version"):
        rl.load_plan(file, tiny, W[0], X)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of nested lists and dictionaries are."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(place for key, item in inner for place in places(item, (*path, key)))]


@hypothesis.settings(max_examples=60, database=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=st.data())
def test_a_file_that_was_edited_is_read_or_refused_in_words(small, data):
    """With a digest that fits, as from another version of this package or an editor: no other error than the two."""
    saved = json.loads(small.read_text())
    body = saved["body"]
    *path, last = data.draw(st.sampled_from(places({k: v for k, v in body.items() if k != "environment"})), label="place")
    inner = body
    for key in path:
        inner = inner[key]
    if data.draw(st.booleans(), label="removed"):
        del inner[last]
    else:
        inner[last] = data.draw(st.sampled_from([None, -1, 10**6, 0.5, "other", [], {}, [0]]), label="value")
    file = small.with_name("edited.json")
    file.write_text(json.dumps({**saved, "digest": stored.digest([stored._canonical(body)])}))
    try:
        found = rl.load_plan(file, tiny, W[0], X)
    except (rl.InvalidPlanFile, rl.PlanMismatch) as error:
        assert str(file) in str(error)  # noqa: PT017, reading it is right too
    else:
        assert isinstance(found, rl.Plan)


def test_what_a_file_cannot_hold_is_refused(plan, tmp_path):
    with pytest.raises(rl.InvalidArgument, match="must_save is a function"):
        plan.amended(must_save=lambda value: True).save(tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())
