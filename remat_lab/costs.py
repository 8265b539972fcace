"""What an equation costs: FLOPs by rule, bytes by type, seconds by roofline."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat_lab import _jax
from remat_lab.errors import UnknownPrimitiveWarning
from remat_lab.primitives import COLLECTIVES, ELEMENTWISE, FUSIBLE, MOVEMENT, REDUCTIONS, VIEWS, forbids_replay, nbytes


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as the roofline model sees it.

    Attributes:
        flops_per_second: arithmetic peak.
        bytes_per_second: memory bandwidth.
        launch_seconds: what starting a kernel costs, however short it is.
    """

    flops_per_second: float
    bytes_per_second: float
    launch_seconds: float = 0.0

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Time of a kernel that is bound by the slower of arithmetic and memory (Williams et al. 2009)."""
        return self.launch_seconds + max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)


# Orders of magnitude for two cores; plans depend on the ratio of the two only.
CPU = Machine(flops_per_second=1e11, bytes_per_second=2e10)


def flops(eqn: _jax.Equation) -> float:
    """Floating-point operations of one equation; a multiply-add counts as two, a loop body once per trip.

    A primitive without a rule is charged one operation per element read and written, never zero.
    """
    rule = _RULES.get(eqn.primitive.name)
    if rule is not None:
        return rule(eqn)
    if _jax.checkpoint_name_of(eqn) is not None:
        return 0.0
    bodies = _jax.sub_jaxprs(eqn)
    if bodies:
        return max(sum(flops(inner) for inner in body.eqns) for body in bodies)
    return float(sum(_elements(v.aval) for v in (*eqn.invars, *eqn.outvars)))


def add_rule(
    primitive: str, rule: Callable[[_jax.Equation], float], inside: Callable[[_jax.Equation], float] | None = None
) -> None:
    """Gives a primitive a rule for its FLOPs, and if it is a loop for the bytes that its trips read and write."""
    _RULES[primitive] = rule
    if inside is not None:
        _BYTES_INSIDE[primitive] = inside


def has_rule(eqn: _jax.Equation) -> bool:
    """Whether `flops` knows the primitive, rather than using its default."""
    known = eqn.primitive.name in _RULES or _jax.checkpoint_name_of(eqn) is not None
    return known or bool(_jax.sub_jaxprs(eqn))


_REPORTED: set[str] = set()


def report_unknown(eqn: _jax.Equation, source_line: str) -> None:
    """Says once for each primitive that its cost is a guess, unless it is never recomputed, when its cost decides nothing.

    Warns:
        UnknownPrimitiveWarning: with the primitive's name, the user's line, and what to do.
    """
    name = eqn.primitive.name
    if name in _REPORTED or has_rule(eqn) or forbids_replay(eqn) is not None:
        return
    _REPORTED.add(name)
    warnings.warn(
        f"there is no rule for the cost of {name} (at {source_line}): it is charged by the bytes that it reads and writes. "
        'costs="measured" times it instead',
        UnknownPrimitiveWarning,
        stacklevel=2,
    )


def moved_bytes(eqn: _jax.Equation) -> int:
    """Bytes that the equation reads and writes when it runs alone."""
    return sum(nbytes(v.aval) for v in (*eqn.invars, *eqn.outvars))


def loop_bytes(eqn: _jax.Equation) -> int:
    """Bytes that the heavy equations in the bodies of a loop or branch read and write, once per trip; 0 for anything else.

    A scan's trips are in the program; of a `while` one is counted, and of a branch's arms the one that moves most.
    """
    rule = _BYTES_INSIDE.get(eqn.primitive.name)
    if rule is not None:
        return int(rule(eqn))
    trips = int(eqn.params["length"]) if eqn.primitive.name == "scan" else 1
    bodies = [sum(bytes_inside(inner) for inner in body.eqns) for body in _jax.sub_jaxprs(eqn)]
    return trips * max(bodies, default=0)


def bytes_inside(eqn: _jax.Equation) -> int:
    """Bytes that one equation of a loop's body reads and writes; 0 if it is computed inside others."""
    if _jax.sub_jaxprs(eqn):
        return loop_bytes(eqn)
    return 0 if eqn.primitive.name in FUSIBLE else moved_bytes(eqn)


def _elements(aval: Any) -> int:
    return math.prod(int(d) for d in getattr(aval, "shape", ()))


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in atom.aval.shape)


def _out(eqn: _jax.Equation) -> float:
    return float(_elements(eqn.outvars[0].aval)) if eqn.outvars else 0.0


def _in(eqn: _jax.Equation) -> float:
    return float(_elements(eqn.invars[0].aval))


def _zero(_: _jax.Equation) -> float:
    return 0.0


def _dot(eqn: _jax.Equation) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = _shape(eqn.invars[0])
    return 2 * _out(eqn) * math.prod(shape[d] for d in contracted)


def _ragged_dot(eqn: _jax.Equation) -> float:
    return 2 * _out(eqn) * _shape(eqn.invars[0])[-1]  # every row meets the matrix of its own group only


def _convolution(eqn: _jax.Equation) -> float:
    kernel = _shape(eqn.invars[1])
    # Each output element sums over the kernel's elements of one output channel: its input channels are already per group.
    return 2 * _out(eqn) * math.prod(kernel) / kernel[eqn.params["dimension_numbers"].rhs_spec[0]]


def _scan(eqn: _jax.Equation) -> float:
    return eqn.params["length"] * sum(flops(inner) for inner in eqn.params["jaxpr"].eqns)


def _while(eqn: _jax.Equation) -> float:
    # The trip count is not in the program: charged as one trip, and kept rather than recomputed where it can matter.
    return sum(flops(inner) for key in ("cond_jaxpr", "body_jaxpr") for inner in eqn.params[key].eqns)


def _sort(eqn: _jax.Equation) -> float:
    shape = _shape(eqn.invars[0])
    length = shape[eqn.params.get("dimension", -1)] if shape else 1
    return _in(eqn) * max(1.0, math.log2(max(2, length)))


def _fft(eqn: _jax.Equation) -> float:
    points = math.prod(eqn.params["fft_lengths"])
    return 5 * _in(eqn) * math.log2(max(2, points))


def _cubic(factor: float) -> Callable[[_jax.Equation], float]:
    def rule(eqn: _jax.Equation) -> float:
        return factor * _in(eqn) * _shape(eqn.invars[0])[-1]

    return rule


def _triangular_solve(eqn: _jax.Equation) -> float:
    return float(_elements(eqn.invars[1].aval) * _shape(eqn.invars[0])[-1])


def _random_bits(eqn: _jax.Equation) -> float:
    return 50 * _out(eqn)  # threefry2x32: 20 rounds of add, rotate and xor on pairs of words


def _scatter(eqn: _jax.Equation) -> float:
    return float(_elements(eqn.invars[-1].aval))


# They tell the compiler something, or arrange that something is where it is needed.
_BOOKKEEPING = frozenset(
    """after_all create_token dce_sink device_put dimension_size from_edtype layout_constraint optimization_barrier
    platform_index reshard to_edtype with_memory_space_constraint""".split()
)

_BYTES_INSIDE: dict[str, Callable[[_jax.Equation], float]] = {}
_RULES: dict[str, Callable[[_jax.Equation], float]] = {
    **dict.fromkeys(ELEMENTWISE, _out),
    **dict.fromkeys(MOVEMENT | VIEWS | _BOOKKEEPING, _zero),
    **dict.fromkeys(REDUCTIONS, _in),
    **dict.fromkeys(COLLECTIVES - {"shard_map"}, _in),
    **dict.fromkeys(("gather", "dynamic_slice", "dynamic_update_slice", "clamp"), _out),
    **dict.fromkeys(("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"), _scatter),
    **dict.fromkeys(
        ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "select_and_scatter_add", "select_and_gather_add"), _in
    ),
    **dict.fromkeys(("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"), _in),
    **dict.fromkeys(("random_bits", "threefry2x32", "rng_bit_generator"), _random_bits),
    **dict.fromkeys(("random_seed", "random_wrap", "random_unwrap", "random_split", "random_fold_in", "random_clone"), _out),
    **dict.fromkeys(("sort", "top_k", "approx_top_k"), _sort),
    **dict.fromkeys(("lu_pivots_to_permutation", "reciprocal", "tridiagonal_solve"), _out),
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "ragged_dot_general": _ragged_dot,
    "scan": _scan,
    "while": _while,
    "fft": _fft,
    "cholesky": _cubic(1 / 3),
    "qr": _cubic(2),
    "lu": _cubic(2 / 3),
    "svd": _cubic(20),
    "eigh": _cubic(9),
    "geqrf": _cubic(2),
    "householder_product": _cubic(2),
    "hessenberg": _cubic(10 / 3),
    "tridiagonal": _cubic(4 / 3),
    "schur": _cubic(25),
    "eig": _cubic(25),
    "triangular_solve": _triangular_solve,
}
