"""The largest batch that fits a device: planned, confirmed as compiled, and within what recomputation may cost."""

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest

import remat_lab as rl
from remat_lab.max_batch import _bisect, _bracket, _confirm

WIDTH, LAYERS = 64, 6
PRECISION = 0.04
DEVICE = 3_000_000  # bytes; parameters and gradients take 0.2 MB of it


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def make(batch):
    ws = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    return loss, (ws, jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32))


@pytest.fixture(scope="module")
def found():
    """The largest batches by what recomputation may cost."""
    limits = {"forward": "forward", "tenth": 0.1, "none": 0.0}
    return {
        name: rl.max_batch(make, DEVICE, max_extra_cost=most, start=512, precision=PRECISION) for name, most in limits.items()
    }


@pytest.mark.parametrize("name", ["forward", "tenth", "none"])
def test_the_batch_found_fits_as_compiled_and_one_not_much_larger_did_not(found, name):
    result = found[name]
    assert result.plan.compiled.total_bytes <= DEVICE
    assert result.plan.memory.other_arguments == result.batch * WIDTH * 4
    refused = min(attempt.batch for attempt in result.attempts if not attempt.fits)
    assert result.batch < refused <= result.batch * (1 + PRECISION) + 1


def test_less_recomputation_means_smaller_batches(found):
    batches = [found[name].batch for name in ("forward", "tenth", "none")]
    assert all(less <= more * (1 + PRECISION) for more, less in pairwise(batches))
    assert batches[0] > batches[2] > 0
    graph = found["forward"].plan.graph
    forward = sum(node.cost for node in graph.nodes if not node.backward)
    assert found["forward"].plan.solution.cost - graph.keep_all_cost <= forward
    assert found["tenth"].plan.solution.overhead <= 0.1
    assert found["none"].plan.solution.overhead == 0


def test_attempts_say_why_a_batch_does_not_fit(found):
    attempts = found["tenth"].attempts
    confirmed = [attempt.batch for attempt in attempts if attempt.compiled and attempt.fits]
    assert max(confirmed) == found["tenth"].batch
    assert any("above 10.0%" in (attempt.reason or "") for attempt in attempts)
    assert all(attempt.fits == (attempt.reason is None) for attempt in attempts)


def test_what_is_reserved_is_not_there_for_the_step(found):
    less = rl.max_batch(make, DEVICE, reserved="1 MB", max_extra_cost=0.0, start=512, check="planned")
    assert less.batch < found["none"].batch


@dataclass
class Made:
    """A model with more results than its value, as the built-in models are."""

    loss: object
    args: tuple
    has_aux: bool = True


def test_a_model_says_whether_it_has_more_results():
    def with_aux(ws, x):
        return loss(ws, x), {"sum": x.sum()}

    result = rl.max_batch(lambda batch: Made(with_aux, make(batch)[1]), DEVICE, limit=7, check="planned")
    assert (result.batch, [attempt.batch for attempt in result.attempts]) == (7, [1, 2, 4, 7])


def test_no_batch_fits_where_parameters_alone_do_not():
    result = rl.max_batch(make, 1000, start=8)
    assert (result.batch, result.plan) == (0, None)
    assert all("less than what is there beside the temporaries" in attempt.reason for attempt in result.attempts)


@pytest.mark.parametrize("largest", [0, 1, 2, 7, 100, 999, 1000, 5000])
@pytest.mark.parametrize("precision", [0.0, 0.01, 0.3])
def test_the_search_ends_close_below_the_largest(largest, precision):
    tried = []

    def fits(batch):
        tried.append(batch)
        return batch <= largest

    low, high = _bisect(fits, *_bracket(fits, 3, 1000), precision)
    assert low <= min(largest, 1000) < high or low == 1000
    assert high - low <= max(1, low * precision)
    tried.clear()
    confirmed = _confirm(fits, 1000, precision)
    assert min(largest, 1000) >= confirmed >= min(largest, 1000) - max(1, largest * precision)
    assert len(tried) <= 22
    assert len(set(tried)) == len(tried)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0}, "start=0"),
        ({"limit": 1, "start": 2}, "1 <= start <= limit"),
        ({"precision": -0.1}, "precision at least 0"),
        ({"max_extra_cost": "backward"}, "max_extra_cost='backward'"),
    ],
)
def test_impossible_options_are_named(options, message):
    with pytest.raises(rl.InvalidArgument, match=message):
        rl.max_batch(make, DEVICE, **options)


def test_a_device_has_bytes():
    with pytest.raises(rl.InvalidBudget):
        rl.max_batch(make, "half")
