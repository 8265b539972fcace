"""`rl.audit`: a claim about training memory, checked: what is in it, for how long, at what price, and is the result right.

The seven questions: (1) which classes of memory, (2) how long large values live and whose buffers they are in, (3) what would
happen if an equation ran again, (4) planned against compiled, and a device's own count where there is one, (5) the price,
(6) on which workload and machine, (7) whether loss and gradients are those of plain JAX.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from remat_lab import audit_memory, audit_work, environment
from remat_lab.arguments import is_concrete, materialise
from remat_lab.device_memory import Reserved
from remat_lab.measure import Compiled, compile_program
from remat_lab.plans import Plan
from remat_lab.targets import as_target
from remat_lab.verify import largest_difference

FORMAT, VERSION = "remat_lab audit", 1
SCHEMA = Path(__file__).with_name("audit.schema.json")

Json = dict[str, Any]


@dataclass(frozen=True)
class Audit:
    """The answers; print it, or use `markdown`, `to_json` and `save`.

    Attributes:
        data: all of them, as `audit.schema.json` describes them.
    """

    data: Json

    def __str__(self) -> str:
        from remat_lab.audit_report import as_text

        return as_text(self.data)

    def markdown(self) -> str:
        """The same page as Markdown."""
        from remat_lab.audit_report import as_markdown

        return as_markdown(self.data)

    def to_json(self) -> Json:
        """The answers as data."""
        return self.data

    def save(self, path: str | Path) -> None:
        """Writes the page: Markdown for `.md`, JSON for `.json`, text for anything else."""
        path = Path(path)
        forms = {".json": lambda: json.dumps(self.data, indent=1), ".md": self.markdown}
        path.write_text(forms.get(path.suffix, lambda: str(self))() + "\n")


def audit(
    fun: Callable[..., Any],
    *args: Any,
    plan: Plan | None = None,
    reserved: Reserved = 0,
    real_args: tuple[Any, ...] | None = None,
    seed: int = 0,
    run: bool = True,
    top: int = 8,
    **options: Any,
) -> Audit:
    """Answers seven questions about the memory of a loss's value-and-gradient step.

    Args:
        fun: the loss.
        *args: its arguments; arrays or `jax.ShapeDtypeStruct`.
        plan: what to audit; by default everything is kept.
        reserved: what else lies on the device: an optimizer (optax) or its state, bytes, or a mapping from names to these.
        real_args: arguments to run with; by default `args`, made up from `seed` where they are only shapes.
        seed: of made-up arguments.
        run: whether to run plan and plain JAX once each, to compare their results; otherwise nothing is allocated.
        top: how many values and steps to name.
        **options: of `plan`, such as `argnums` or `has_aux`, if no plan is given.

    Returns:
        The answers.
    """
    from remat_lab.api import plan as make_plan

    if plan is None:
        plan = make_plan(fun, *args, budget=None, check="planned", **options)
    values = plan.call.values
    loss = plan.loss if plan.plain is None else plan.plain[0]

    def plain_step(*values: Any) -> list[Any]:
        traced = loss.trace(plan.call)
        return jax.core.eval_jaxpr(traced.jaxpr, traced.jaxpr.consts, *values)

    target, compiler_options = as_target(plan.target), plan.compiler_options
    plain = compile_program(plain_step, *values, target=target, compiler_options=compiler_options)
    equality = None
    if run and target.is_present:
        given = args if real_args is None else real_args
        made = given if is_concrete(given) else materialise(given, seed)
        equality = _equivalence(plan, plain, loss.call(made, {}).values, seed)
    return Audit(
        {
            "format": FORMAT,
            "version": VERSION,
            "memory": audit_memory.classes(plan, reserved),
            "lifetimes": audit_memory.lifetimes(plan, top),
            "replay": audit_work.semantics(plan, top),
            "peaks": audit_memory.peaks(plan, plain),
            "price": audit_work.price(plan, top),
            "workload": _workload(plan),
            "equivalence": equality,
        }
    )


def _workload(plan: Plan) -> Json:
    solution = plan.solution
    arrays = sorted(plan.call.values, key=lambda x: -x.size * x.dtype.itemsize)
    leaves = [f"{x.dtype}[{','.join(map(str, x.shape))}]" for x in arrays]
    return {
        "loss": plan.loss.name,
        "arguments": len(leaves),
        "largest_arguments": list(dict.fromkeys(leaves))[:4],
        "equations": len(plan.program.equations),
        "solver": solution.solver,
        "status": solution.status.value,
        "gap": solution.gap,
        "check": plan.check,
        "environment": environment.describe(),
    }


def _equivalence(plan: Plan, plain: Compiled, values: list[Any], seed: int) -> Json:
    """Loss and gradients of both programs under the same compiler options, output by output."""
    expected, found = plain.call(*values), plan.compiled.call(*values)
    primal = len(expected) - len(plan.call.differentiated)
    names = [
        "loss",
        *(f"aux {i}" for i in range(1, primal)),
        *(f"gradient of {plan.call.paths[i]}" for i in plan.call.differentiated),
    ]
    rows = [largest_difference(a, b) for a, b in zip(expected, found, strict=True)]
    worst = max(range(len(rows)), key=lambda i: rows[i].absolute)
    scale = max(float(jax.numpy.max(jax.numpy.abs(x), initial=0)) for x in expected[primal:])
    equal = all(row.bitwise for row in rows)
    atom = plan.program.outputs[worst]
    maker = plan.program.producer.get(atom) if isinstance(atom, int) else None
    where = None if equal or maker is None else plan.program.equations[maker]
    return {
        "seed": seed,
        "bitwise": equal,
        "outputs": len(rows),
        "outputs_bitwise": sum(row.bitwise for row in rows),
        "loss_difference": rows[0].absolute,
        "largest_absolute": rows[worst].absolute,
        "largest_relative": rows[worst].absolute / scale if scale else rows[worst].absolute,
        "differs_most": None if equal else names[worst],
        "made_by": None if where is None else f"{where.name} at {where.source_line}",
    }
