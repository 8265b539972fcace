"""Everything private or version-dependent of JAX, one module for each concern; `names` is the table of it, with what it is for.

In: JAX from 0.11.2 on. Out: functions that the rest of the toolkit calls instead, with one meaning on every release; where a
release lacks what one needs, it raises `UnsupportedJax` when it is called. Uses `errors` only; everything may use it.
"""

from remat_lab._jax.avals import shape_of, trace_context, trace_like, vary_like
from remat_lab._jax.checkpoints import checkpoint_name_of, effects_to_run_once, is_new_checkpoint, remat_traced_body
from remat_lab._jax.devices import described
from remat_lab._jax.equations import (
    Equation,
    Literal,
    bind,
    bodies,
    constants,
    context_key,
    drop_dead,
    equation_context,
    is_unspecified_call,
    scan_operands,
    scopes_of,
    source_line,
    sub_jaxprs,
)
from remat_lab._jax.pooling import scatter_selected
from remat_lab._jax.references import is_ref, is_ref_type, refs_to_values
from remat_lab._jax.rules import MappedAxis, is_symbolic_zero, is_zero, primitive, register, require, zero_of

__all__ = [
    "Equation",
    "Literal",
    "MappedAxis",
    "bind",
    "bodies",
    "checkpoint_name_of",
    "constants",
    "context_key",
    "described",
    "drop_dead",
    "effects_to_run_once",
    "equation_context",
    "is_new_checkpoint",
    "is_ref",
    "is_ref_type",
    "is_symbolic_zero",
    "is_unspecified_call",
    "is_zero",
    "primitive",
    "refs_to_values",
    "register",
    "remat_traced_body",
    "require",
    "scan_operands",
    "scatter_selected",
    "scopes_of",
    "shape_of",
    "source_line",
    "sub_jaxprs",
    "trace_context",
    "trace_like",
    "vary_like",
    "zero_of",
]
