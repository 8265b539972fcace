"""The small programs that `remat-lab doctor` compiles: does this compiler do what promises rest on?"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from remat_lab import _jax
from remat_lab.barriers import barrier
from remat_lab.flatten import Equation
from remat_lab.hlo import Instruction, Module, parse
from remat_lab.kernels import program_text
from remat_lab.measure import compile_program
from remat_lab.plans import Plan
from remat_lab.read_back import Emitted
from remat_lab.targets import Target, as_target

_SQUARE = jax.ShapeDtypeStruct((128, 128), jnp.float32)
_LAYERS = 8


def scopes_of_products(executable: Any) -> list[str]:
    """The named scopes of a compiled program's products, in the order in which it runs them."""
    text = program_text(executable)
    if text is None:
        raise ValueError("the compiled program does not show its instructions")
    module = parse(text)
    instructions = module.computations[module.entry].instructions
    return ["/".join(i.op_name.split("/")[1:-1]) for i in instructions if _is_product(module, i)]


def _is_product(module: Module, i: Instruction) -> bool:
    if i.opcode == "dot" or (i.opcode == "custom-call" and "gemm" in i.text):  # a library's, on GPUs
        return True
    called = (module.computations[name] for name in i.called("calls", "to_apply") if name in module.computations)
    return any(_is_product(module, inner) for computation in called for inner in computation.instructions)


def takes_options() -> str:
    """Compiles with the options of the promise, and shows that unknown ones would be refused."""
    options = as_target(None).compiler_options
    compile_program(jnp.sin, _SQUARE, compiler_options=options)
    try:
        compile_program(jnp.sin, _SQUARE, compiler_options={"xla_no_such_option": "1"})
    except Exception:
        return " ".join(f"{key}={value}" for key, value in options.items()) or "none are needed here"
    raise ValueError("an option that does not exist was taken in silence, so that a taken option shows nothing")


def holds_order() -> str:
    """Two products that do not depend on each other run in the order of a barrier, whichever comes first."""

    def in_order(names: tuple[str, str]) -> Callable[..., Any]:
        def run(x: Any, y: Any) -> Any:
            operands, results = {"one": x, "other": y}, dict[str, Any]()
            for name in names:
                (operand,) = barrier([operands[name]], list(results.values()))
                results[name] = jax.named_scope(name)(jnp.dot)(operand, operand)
            return results["one"], results["other"]

        return run

    for names in (("one", "other"), ("other", "one")):
        compiled = compile_program(in_order(names), _SQUARE, _SQUARE, compiler_options=as_target(None).compiler_options)
        found = scopes_of_products(compiled.executable)
        if found != list(names):
            raise ValueError(f"the products {' and '.join(names)}, tied in this order, run as {' and '.join(found)}")
    return "two products run in the order in which they are tied, either way round"


def keeps_recomputation() -> str:
    """A product that is computed again behind a barrier is not merged with the first one."""

    def run(x: Any) -> Any:
        first = jax.named_scope("first")(jnp.dot)(x, x)
        (again,) = barrier([x], [first])
        return jax.named_scope("again")(jnp.dot)(again, again) + first

    compiled = compile_program(run, _SQUARE, compiler_options=as_target(None).compiler_options)
    found = scopes_of_products(compiled.executable)
    if found != ["first", "again"]:
        raise ValueError(f"of a product and its recomputation the compiled program has: {', '.join(found) or 'none'}")
    return "a product behind a barrier is computed again"


def _loss(weights: Any, x: Any) -> Any:
    for k, w in enumerate(weights):
        with jax.named_scope(f"layer{k}"):
            x = jnp.sin(jnp.cos(x @ w))
    return jnp.mean(x**2)


def _arguments() -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0), _LAYERS + 1)
    weights = [jax.random.normal(key, _SQUARE.shape) / 8 for key in keys[1:]]
    return weights, jax.random.normal(keys[0], (512, _SQUARE.shape[0]))


@cache
def tiny_plan() -> Plan:
    """A plan of eight layers that has to compute some of them again."""
    from remat_lab.api import plan

    return plan(_loss, *_arguments(), budget=0.5, time_limit=10.0)


def same_gradients() -> str:
    """First proof: value and gradients are those of plain JAX."""
    difference = tiny_plan().verify(*_arguments())
    if difference.relative > 1e-5:
        raise ValueError(f"value and gradients differ from plain JAX's by {difference}")
    return f"value and gradients differ from plain JAX's by {difference}"


def keeps_what_is_planned() -> str:
    """Second proof: what the emitted program holds during each step is what the plan says."""
    plan = tiny_plan()
    found, planned = Emitted.of(plan, *_arguments()).live, plan.predicted.live
    if found != planned:
        step = next(k for k, pair in enumerate(zip(found, planned, strict=True)) if pair[0] != pair[1])
        raise ValueError(
            f"in step {step} of {len(planned)} the program holds {found[step]:,} bytes for {planned[step]:,} planned"
        )
    return f"in each of {len(planned)} steps the program holds what is planned, {max(planned):,} bytes at most"


def computes_again_what_is_planned() -> str:
    """Third proof: each product is computed as often as the plan says, and some more than once."""
    plan = tiny_plan()
    once, planned = (sum(len(_products(plan, v)) for v in order) for order in (plan.graph.steps, plan.schedule.order))
    found = Emitted.of(plan, *_arguments()).count("dot_general")
    if found != planned or not plan.schedule.recomputed:
        raise ValueError(f"{found} products are emitted for {planned} planned, {len(plan.schedule.recomputed)} steps again")
    again = sum(plan.schedule.recomputed.values())
    return f"{found} products for {once} in plain JAX, {again} steps computed again: as planned"


def _products(plan: Plan, node: int) -> list[Equation]:
    equations = (plan.program.equations[k] for k in plan.fused.groups[node].equations)
    return [q for q in equations if q.name == "dot_general"]


def fits_as_compiled() -> str:
    """Fourth proof: the compiled program is within the budget, and its products run in the planned order."""
    plan = tiny_plan()
    budget, temp = plan.budget_bytes or 0, plan.compiled_bytes
    if temp > budget:
        raise ValueError(f"the compiled program takes {temp:,} bytes for a budget of {budget:,}")
    planned = [_jax.scopes_of(q.eqn) for v in plan.schedule.order for q in _products(plan, v)]
    found = scopes_of_products(plan.compiled.executable)
    if planned != found:
        here = next(
            (k for k, pair in enumerate(zip(planned, found, strict=False)) if pair[0] != pair[1]), min(len(planned), len(found))
        )
        raise ValueError(
            f"product {here} of {len(planned)} planned is compiled otherwise: {found[here : here + 1] or 'missing'}"
        )
    return (
        f"the compiled program takes {temp:,} bytes for a budget of {budget:,}, its {len(found)} products in the planned order"
    )


def compiles_for(target: Target) -> str:
    """Compiles a product for a device that is not here."""
    compiled = compile_program(lambda x: x @ x, _SQUARE, target=target)
    return f"compiles; a product takes {compiled.temp_bytes:,} bytes beside its result"
