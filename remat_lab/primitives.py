"""What the planner knows about JAX primitives: which fuse, which only rename bytes, which must not run twice."""

from __future__ import annotations

from typing import Any

from remat_lab import _jax

# Results have the same bytes as the operand in the same order: XLA renames the buffer.
VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "stop_gradient", "name", "pvary", "sharding_constraint"})

ELEMENTWISE = frozenset(
    """abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
    convert_element_type cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a
    igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi ne neg nextafter
    not one_minus_square or polygamma polynomial population_count pow real reduce_precision regularized_incomplete_beta rem
    round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh xor
    zeta""".split()
)

# Moved or repeated, not computed; XLA computes them inside the kernel that reads them.
MOVEMENT = frozenset(
    """bitcast_convert_type broadcast_in_dim concatenate copy copy_p empty empty2 iota pad rev slice split stack tile transpose
    unstack zeros_like""".split()
)

FUSIBLE = ELEMENTWISE | MOVEMENT | VIEWS

# Their inputs are computed inside their own kernel, so that reading a fusible value does not force it to memory.
REDUCTIONS = frozenset(
    "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor reduce".split()
)

# They change their first operand in its own buffer if nobody else reads it.
IN_PLACE = frozenset("dynamic_update_slice scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub".split())

# Calls that only run their body.
PLAIN_CALLS = frozenset("jit pjit closed_call core_call".split())

CALLS = PLAIN_CALLS | frozenset("custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr remat2 checkpoint".split())

# A recomputation that differs in the last bit can choose another element: such results are kept whatever they cost.
DISCRETE = frozenset("approx_top_k argmax argmin sort top_k".split())

# Their results can differ from one run to the next, or running them has a price outside the program.
UNREPEATABLE = frozenset(
    """debug_callback debug_print ffi_call infeed io_callback outfeed pure_callback random_gamma_grad rng_bit_generator
    rng_uniform""".split()
)

# From a key, or making one.
RANDOM = frozenset(
    "random_bits random_fold_in random_gamma random_seed random_split random_unwrap random_wrap threefry2x32".split()
)

# Equal inputs do not mean equal results, though no effect says so.
STATEFUL = frozenset({"rng_uniform"})

COLLECTIVES = frozenset(
    """all_gather all_gather_invariant all_to_all axis_index pbroadcast
    pbroadcast_dynamic pmax pmin ppermute psum psum2 psum_invariant
    psum_scatter ragged_all_to_all ragged_dot_all_to_all reduce_scatter shard_map unreduced_pmax unreduced_pmin
    unreduced_psum unreduced_reduce_scatter""".split()
)


def carried_operands(eqn: _jax.Equation) -> range:
    """The operands of a loop that it changes in their own buffers, which then are its first results'; none otherwise."""
    if eqn.primitive.name == "scan":
        consts, carries = _jax.scan_operands(eqn)
        return range(consts, consts + carries)
    if eqn.primitive.name == "while":
        return range(eqn.params["cond_nconsts"] + eqn.params["body_nconsts"], len(eqn.invars))
    return range(0)


def forbids_replay(eqn: _jax.Equation) -> str | None:
    """Why an equation must run exactly once; None if it may be recomputed."""
    name = eqn.primitive.name
    if eqn.effects:
        return f"it has effects ({', '.join(sorted(map(str, eqn.effects)))})"
    if name in DISCRETE:
        return "a discrete choice that rounding could flip"
    if name in UNREPEATABLE:
        return "its result or its price may differ from run to run"
    if name in COLLECTIVES:
        return "it communicates between devices"
    if name == "random_bits" and "fry" not in str(getattr(eqn.invars[0].aval, "dtype", "")):
        return "a random generator whose bits may depend on how the program is compiled"
    for inner in _jax.sub_jaxprs(eqn):
        for inner_eqn in inner.eqns:
            reason = forbids_replay(inner_eqn)
            if reason is not None:
                return f"it contains {inner_eqn.primitive.name}: {reason}"
    return None


def nbytes(aval: Any) -> int:
    """Bytes of an array of this type; 0 for tokens and references."""
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or dtype is None or "Ref" in type(aval).__name__:
        return 0
    size = int(dtype.itemsize)
    for dim in shape:
        size *= int(dim)
    return size
