"""The table of everything private or version-dependent of JAX that the toolkit stands on.

A row is either a private name, looked up by `find`, or a form: how something public looks from inside, such as the parameters
of an equation. `checks.py` shows of each row what is needed of it; `remat-lab doctor` and the tests run those. Nothing here is
looked up when `remat_lab` is imported, so that a name which a later JAX moves disables one feature and not the toolkit.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax

from remat_lab.errors import UnsupportedJax

TESTED = ("0.11.2", "0.12.0.1", "0.12.1")
"""The releases of JAX that the tests were run on, oldest first."""

PLANS = "plans"
LOOPS = "planned loops"
REFERENCES = "functions that read or write a jax.Ref"
MAPPING = "shard_map around what is planned"
NEW_CHECKPOINT = "policies under JAX_REMAT3"
POOLING = "max-pool gradients in a plan's own memory on GPUs"
SOURCES = "source lines in tables and errors"

WITHOUT = {
    LOOPS: "write the loop out, or keep lax.scan under jax.checkpoint",
    REFERENCES: "pass the contents as arguments and return what they become",
    MAPPING: "plan the function inside of shard_map without rl.scan",
    NEW_CHECKPOINT: "unset JAX_REMAT3",
}
"""What a user can do where a feature is missing, beside installing another JAX."""


@dataclass(frozen=True, slots=True)
class Name:
    """One thing that JAX does not promise to keep.

    Attributes:
        where: its dotted name; for a form, what has it.
        feature: what needs it, in a user's words.
        purpose: what it is for.
        since: the oldest release of JAX that has it in this form.
        public: the public way that will replace it, or why there is none.
        private: whether it is to be found by `find`, rather than a form.
        without: what is less where it is missing; None if the feature is lost.
    """

    where: str
    feature: str
    purpose: str
    since: str
    public: str
    private: bool = False
    without: str | None = None


DISCHARGE = "jax._src.state.discharge.discharge_state"
DEAD_CODE = "jax.interpreters.partial_eval.dce_jaxpr"
JVPS = "jax.interpreters.ad.primitive_jvps"
TRANSPOSES = "jax.interpreters.ad.primitive_transposes"
ZERO = "jax.interpreters.ad.Zero"
BATCHERS = "jax.interpreters.batching.primitive_batchers"
AXIS_BATCHERS = "jax.interpreters.batching.fancy_primitive_batchers"
LOWERING = "jax.interpreters.mlir.register_lowering"
LOWER_FUN = "jax.interpreters.mlir.lower_fun"
AXIS_NAMES = "jax.extend.core.unsafe_get_axis_names_DO_NOT_USE"
SCATTER = "jax.extend.core.primitives.select_and_scatter_p"
_RULES = "JAX documents how to give a primitive rules, but these tables stand in no API reference"

NAMES = (
    Name(
        where=DISCHARGE,
        feature=REFERENCES,
        purpose="a program of values made of one that reads and writes references",
        since="0.11.2",
        public="none: jax.jit does it, but only while lowering",
        private=True,
    ),
    Name(
        where=DEAD_CODE,
        feature=PLANS,
        purpose="drops unused results of loops",
        since="0.11.2",
        public="none",
        private=True,
        without="unused results of loops stay",
    ),
    Name(
        where=JVPS,
        feature=LOOPS,
        purpose="the derivative of a planned loop",
        since="0.11.2",
        public=_RULES,
        private=True,
    ),
    Name(
        where=TRANSPOSES,
        feature=LOOPS,
        purpose="the backward pass of a planned loop",
        since="0.11.2",
        public=_RULES,
        private=True,
    ),
    Name(
        where=ZERO,
        feature=LOOPS,
        purpose="a tangent or cotangent that is known to be zero",
        since="0.11.2",
        public=_RULES,
        private=True,
    ),
    Name(
        where=BATCHERS,
        feature=LOOPS,
        purpose="jax.vmap of a loop without a bound",
        since="0.11.2",
        public=_RULES,
        private=True,
    ),
    Name(
        where=AXIS_BATCHERS,
        feature=LOOPS,
        purpose="jax.vmap of a planned loop: size and name of the mapped axis",
        since="0.11.2",
        public="none: primitive_batchers tells neither",
        private=True,
    ),
    Name(
        where=LOWERING,
        feature=LOOPS,
        purpose="what a planned loop compiles to",
        since="0.11.2",
        public=_RULES,
        private=True,
    ),
    Name(
        where=LOWER_FUN,
        feature=LOOPS,
        purpose="the same, from a Python function",
        since="0.11.2",
        public=_RULES,
        private=True,
    ),
    Name(
        where=AXIS_NAMES,
        feature=LOOPS,
        purpose="the mapped axes under which a loop's body is traced",
        since="0.11.2",
        public="none",
        private=True,
        without="loops' bodies are traced again for every use",
    ),
    Name(
        where=SCATTER,
        feature=POOLING,
        purpose="a max-pool's gradient, summed onto zeros that the plan gives",
        since="0.11.2",
        public="none: the derivative makes zeros of its own",
        private=True,
        without="the zeros are as JAX makes them",
    ),
    Name(
        where="JaxprEqn.ctx",
        feature=PLANS,
        purpose="the context of an equation: one object for equal ones, and its context manager",
        since="0.11.2",
        public="jax.core.eval_jaxpr has it for whole jaxprs",
    ),
    Name(
        where="Primitive.get_bind_params",
        feature=PLANS,
        purpose="runs an equation again",
        since="0.11.2",
        public="jax.core.eval_jaxpr has it for whole jaxprs",
    ),
    Name(
        where="JaxprEqn.source_info",
        feature=SOURCES,
        purpose="stack frames and named scopes of an equation",
        since="0.11.2",
        public="jax.extend.source_info_util.summarize knows the innermost frame only",
        without="source lines are unknown",
    ),
    Name(
        where="jax.extend.source_info_util.user_context",
        feature=SOURCES,
        purpose="gives emitted equations the lines of the user's",
        since="0.11.2",
        public="none",
        without="compiled programs name no lines",
    ),
    Name(
        where="jaxpr.consts",
        feature=PLANS,
        purpose="what jax.make_jaxpr returns is jaxpr and closed jaxpr at once",
        since="0.11.2",
        public="none",
    ),
    Name(
        where="parameters of jit",
        feature=PLANS,
        purpose="a call that asks for no sharding is inlined",
        since="0.11.2",
        public="none",
    ),
    Name(
        where="parameters of scan",
        feature=LOOPS,
        purpose="which operands are constants and carries",
        since="0.11.2",
        public="none: they are trees since 0.11",
    ),
    Name(
        where="the primitive of checkpoint_name",
        feature=PLANS,
        purpose="finds the names that the user gave",
        since="0.11.2",
        public="none",
    ),
    Name(
        where="call_hi_primitive",
        feature=NEW_CHECKPOINT,
        purpose="names and regions of the new jax.checkpoint",
        since="0.11.2",
        public="none yet",
    ),
    Name(
        where="effects under jax.checkpoint",
        feature=PLANS,
        purpose="which side effects recomputation may repeat",
        since="0.11.2",
        public="jax.checkpoint itself, asked with a toy primitive",
    ),
    Name(
        where="effects of references",
        feature=REFERENCES,
        purpose="reads and writes of a jax.Ref, told from other effects",
        since="0.11.2",
        public="jax.make_jaxpr, asked with a toy program",
    ),
    Name(
        where="manual_axis_type",
        feature=MAPPING,
        purpose="the axes of shard_map that a value varies over",
        since="0.11.2",
        public="none",
    ),
    Name(
        where="jax.config.values",
        feature=LOOPS,
        purpose="the settings that a trace depends on",
        since="0.11.2",
        public="none",
        without="loops' bodies are traced again for every use",
    ),
)

_ROWS = {name.where: name for name in NAMES}


def find(where: str) -> Any:
    """A private name of the table.

    Args:
        where: its dotted name, as in the table.

    Raises:
        UnsupportedJax: if this JAX has no such name, with the feature that needs it and what to do.
    """
    module, _, attribute = where.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise missing(_ROWS[where].feature, where) from error


def part(of: Any, attribute: str, where: str) -> Any:
    """An attribute of an object of JAX's, for a row that is a form.

    Raises:
        UnsupportedJax: if it has none, as `find`.
    """
    try:
        return getattr(of, attribute)
    except AttributeError as error:
        raise missing(_ROWS[where].feature, where) from error


def has(*wheres: str) -> bool:
    """Whether this JAX has these private names."""
    try:
        for where in wheres:
            find(where)
    except UnsupportedJax:
        return False
    return True


def missing(feature: str, where: str) -> UnsupportedJax:
    """The error that says that a feature cannot be had on this JAX."""
    instead = WITHOUT.get(feature)
    return UnsupportedJax(
        f"{feature} need {where}, which jax {jax.__version__} does not have in the form that remat_lab knows. It was tested "
        f"with jax {', '.join(TESTED)}: install one of these{f', or {instead}' if instead else ''}. "
        "`remat-lab doctor` lists what else is missing."
    )


@cache
def is_tested(version: str) -> bool:
    """Whether the tests were run on a release of JAX."""
    return version in TESTED
