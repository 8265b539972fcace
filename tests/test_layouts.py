"""Results take their final layout where they are computed, so that they do not wait among the temporaries for the end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import remat_lab as rl
from remat_lab.layouts import in_default_layout
from remat_lab.measure import SCHEDULERS, compile_program


def test_gradients_of_weights_lie_in_the_callers_buffers():
    def loss(kernels, x):
        for kernel in kernels:
            x = jnp.tanh(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        return jnp.sum(x)

    kernels = [jax.ShapeDtypeStruct((3, 3, 64, 64), jnp.float32)] * 6
    x = jax.ShapeDtypeStruct((2, 8, 8, 64), jnp.float32)
    plan = rl.plan(loss, kernels, x, check="planned")
    compiled = compile_program(plan.value_and_grad(), kernels, x, compiler_options=SCHEDULERS["memory"])
    # Kept in the layout that the convolutions write, six gradients of 147 kB would be temporaries until the end.
    assert compiled.temp_bytes <= 1.02 * plan.predicted.peak_bytes
    assert compiled.temp_bytes < 4 * 3 * 3 * 64 * 64 * 4


ARRAYS = {
    "floats": np.arange(24.0, dtype=np.float32).reshape(2, 3, 4),
    "integers": np.arange(6).reshape(3, 2).astype(np.int32),
    "booleans": np.eye(3, dtype=bool),
    "vector": np.arange(5.0, dtype=np.float32),
    "nothing": np.zeros((0, 3), np.float32),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_the_values_are_the_same_under_every_transformation(array):
    x = jnp.asarray(array)
    np.testing.assert_array_equal(in_default_layout(x), array)
    np.testing.assert_array_equal(jax.jit(in_default_layout)(x.T), array.T)
    np.testing.assert_array_equal(jax.vmap(in_default_layout)(x), array)
    np.testing.assert_array_equal(jax.jit(jax.vmap(in_default_layout, in_axes=-1, out_axes=-1))(x), array)


def test_keys_are_left_alone():
    keys = jax.random.split(jax.random.key(0), (2, 3))
    assert in_default_layout(keys) is keys
