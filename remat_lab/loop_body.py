"""One step of a loop, taken apart: what the forward pass computes, what the backward pass reads, and what is kept between them.

The body and its derivative are traced as one program. Values that depend on no carry, slice or cotangent are the same in every
step: those that take more than moving and elementwise arithmetic are computed once, before the loop; the others cost next to
nothing to have again. Of all that varies, a set is kept per step from which everything that the backward pass reads can be
computed. Tiers say what may be computed again for that, by the FLOPs that an equation takes per byte that it writes: tier 0
recomputes what fuses into its readers, and reductions; `MOVES_ONLY` nothing but rearranged copies; infinity everything, which
leaves at most the carry. Within a tier the kept set is the lightest, by a minimum cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from remat_lab import _jax, costs
from remat_lab.errors import UnsupportedEffect
from remat_lab.flatten import Program, flatten
from remat_lab.loop import Loop
from remat_lab.loop_flow import Moving as Moving
from remat_lab.loop_flow import needed, reached, spread
from remat_lab.loop_rules import MOVES_ONLY, heaviness, is_light, must_not_repeat
from remat_lab.primitives import PLAIN_CALLS, UNREPEATABLE
from solvers.vertex_cut import vertex_cut

# Rules for derivatives stay as they are, for derivatives of higher order; recomputation inside a step is planned with the rest.
_CALLS = PLAIN_CALLS | {"checkpoint", "remat2"}


@dataclass(frozen=True, eq=False)
class Body:
    """One step of a loop with its derivative.

    Attributes:
        loop: the loop.
        moving: which operands, constants, carries and xs, tangents flow through; for carries already in any step.
        moving_ys: which ys depend on those.
        program: from constants, carries, slices of xs, cotangents of the moving carries and of the moving ys' slices to
            carries, slices of ys, and gradients of the moving constants, carries and slices of xs.
    """

    loop: Loop
    moving: Moving
    moving_ys: Moving
    program: Program

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """Values of the program: constants, carries, slices of xs, cotangents of carries, cotangents of ys."""
        loop, values = self.loop, self.program.inputs
        ends = [loop.consts, loop.carries, len(loop.in_avals) - loop.consts - loop.carries, sum(self.moving_carries)]
        parts, first = [], 0
        for size in ends:
            parts.append(values[first : first + size])
            first += size
        return (*parts, values[first:])

    @property
    def moving_carries(self) -> Moving:
        """Which carries tangents flow through."""
        return self.moving[self.loop.consts : self.loop.consts + self.loop.carries]

    @cached_property
    def outputs(self) -> tuple[tuple[Any, ...], ...]:
        """Atoms of the program: carries, slices of ys, gradients of constants, of carries, of slices of xs."""
        loop, atoms = self.loop, self.program.outputs
        consts, carries, xs = loop.split(self.moving)
        ends = [loop.carries, len(self.moving_ys), sum(consts), sum(carries), sum(xs)]
        parts, first = [], 0
        for size in ends:
            parts.append(atoms[first : first + size])
            first += size
        return tuple(parts)

    @cached_property
    def backward(self) -> frozenset[int]:
        """Values that depend on a cotangent."""
        return reached(self.program, (*self.inputs[3], *self.inputs[4]))

    @cached_property
    def varying(self) -> frozenset[int]:
        """Values of the forward pass that may differ from step to step."""
        carried = reached(self.program, (*self.inputs[1], *self.inputs[2]))
        return (carried | self._chance) - self.backward

    @cached_property
    def _chance(self) -> frozenset[int]:
        """Values that need not be equal in two steps though their inputs are."""
        unsure = [o for q in self.program.equations if q.eqn.effects or q.name in UNREPEATABLE for o in q.outs]
        return frozenset(unsure) | reached(self.program, unsure)

    @cached_property
    def hoisted(self) -> tuple[int, ...]:
        """Values equal in all steps that are worth computing once: what heavy equations make of constants."""
        program, heavy = self.program, set[int]()
        invariant = set[int]()
        read_by_varying = set[int]()
        for q in program.equations:
            if not (self.varying | self.backward).isdisjoint(q.outs):
                read_by_varying.update(q.reads)
            else:
                invariant.update(q.outs)
                if not is_light(q) or not heavy.isdisjoint(q.reads):
                    heavy.update(q.outs)
        read_by_varying.update(v for v in program.outputs if isinstance(v, int))
        return tuple(sorted(heavy & invariant & read_by_varying))

    @cached_property
    def pinned(self) -> tuple[int, ...]:
        """Values that no replay may compute again: kept for all steps, whatever the nest."""
        program = self.program
        wanted = needed(program, [*self.outputs[0], *self.frontier], self.constant)
        made = [o for k in wanted if must_not_repeat(program.equations[k].eqn) for o in program.equations[k].outs]
        return tuple(v for v in made if v in self.varying and hasattr(program.avals[v], "dtype"))

    @cached_property
    def constant(self) -> frozenset[int]:
        """Values that every step has: constants, and what is computed before the loop."""
        return frozenset((*self.inputs[0], *self.program.constants, *self.hoisted))

    @cached_property
    def frontier(self) -> tuple[int, ...]:
        """Varying values of the forward pass that the backward pass reads."""
        program, reads = self.program, set[int]()
        for q in program.equations:
            if not self.backward.isdisjoint(q.outs):
                reads.update(q.reads)
        reads.update(v for part in self.outputs[2:] for v in part if isinstance(v, int))
        return tuple(sorted(reads & self.varying))

    @lru_cache  # noqa: B019 - bodies are few, kept by the cache of `body_of` anyway
    def kept(self, tier: float) -> tuple[int, ...]:
        """The lightest set of values to keep per step, so that nothing above the tier is computed again.

        Slices of xs and pinned values are there anyway.
        """
        program = self.program
        free = {*self.inputs[2], *self.pinned}
        sizes = {v: program.bytes[v] for v in self.varying - free if hasattr(program.avals[v], "dtype")}
        inputs: dict[int, Sequence[int]] = {}
        sources = set(self.inputs[1])
        for q in program.equations:
            if self.varying.isdisjoint(q.outs):
                continue
            for o in q.outs:
                if heaviness(program, q) <= tier:
                    inputs[o] = q.reads
                elif o in sizes:
                    sources.add(o)
        wanted = [v for v in self.frontier if v in sizes]
        return tuple(sorted(vertex_cut(sizes, inputs, sources, wanted)))

    @cached_property
    def tiers(self) -> tuple[float, ...]:
        """All tiers with different kept sets, from `MOVES_ONLY` to infinity."""
        found: dict[tuple[int, ...], float] = {}
        levels = {heaviness(self.program, q) for q in self.program.equations if not self.varying.isdisjoint(q.outs)}
        for tier in sorted({MOVES_ONLY, 0.0, math.inf, *levels}):
            found.setdefault(self.kept(tier), tier)
        return tuple(found.values())

    def compute(
        self,
        env: dict[int, Any],
        atoms: Iterable[Any],
        *,
        effects: bool = False,
        seen: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        """Values of the program from those given.

        Args:
            env: values that are there; receives those computed.
            atoms: what is wanted.
            effects: whether to run equations of the forward pass that have effects, too.
            seen: is told each value that is computed, as soon as it is.
        """
        program, wanted = self.program, list(atoms)
        env.update((v, x) for v, x in program.constants.items() if v not in env)
        todo = set(needed(program, wanted, env))
        if effects:
            for k, q in enumerate(program.equations):
                if q.eqn.effects and self.backward.isdisjoint(q.reads):
                    todo |= {k, *needed(program, q.reads, env)}
        for k in sorted(todo):
            q = program.equations[k]
            ins = [env[v] if isinstance(v, int) else v.val for v in q.ins]
            for o, value in zip(q.outs, _jax.bind(q.eqn, ins), strict=True):
                if o not in env:
                    env[o] = value
                    if seen is not None:
                        seen(o, value)
        return [strong(env[v] if isinstance(v, int) else jnp.asarray(v.val, v.aval.dtype)) for v in wanted]

    def reverse(self, env: dict[int, Any], totals: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Runs the step backward.

        Args:
            env: constants, slices of xs, cotangents, and what the step kept.
            totals: gradients of the moving constants so far.

        Returns:
            The gradients of the moving constants with this step's added, of the carries, and of the slices of xs.
        """
        of_consts, of_carry, of_x = self.outputs[2:]
        sums = list(totals)
        waiting: dict[int, list[int]] = {}
        for i, atom in enumerate(of_consts):
            if isinstance(atom, int):
                waiting.setdefault(atom, []).append(i)

        def add(value: int, part: Any) -> None:  # at once, so that no two parts as large as weights live together
            for i in waiting.pop(value, ()):
                sums[i] = sums[i] + strong(part)

        result = self.compute(env, [*of_consts, *of_carry, *of_x], seen=add)
        for value in list(waiting):
            add(value, env[value])
        for i, atom in enumerate(of_consts):
            if not isinstance(atom, int):
                sums[i] = sums[i] + result[i]
        first, second = len(of_consts), len(of_consts) + len(of_carry)
        return sums, result[first:second], result[second:]

    def flops(self, available: Iterable[int], atoms: Iterable[Any]) -> float:
        """FLOPs of computing values from those available."""
        return self.total(available, atoms, costs.flops)

    def total(self, available: Iterable[int], atoms: Iterable[Any], of: Callable[[_jax.Equation], float]) -> float:
        """The sum of a measure of the equations that compute values from those available."""
        equations = needed(self.program, list(atoms), frozenset(available) | set(self.program.constants))
        return sum(of(self.program.equations[k].eqn) for k in equations)


def body_of(loop: Loop, moving: Moving) -> Body:
    """Takes a loop's body apart.

    Args:
        loop: the loop.
        moving: which operands tangents flow through at the start.

    Raises:
        UnsupportedEffect: if the body has a side effect that must not be repeated.
    """
    return _body_of(loop, moving, _jax.trace_context())


@lru_cache(maxsize=64)
def _body_of(loop: Loop, moving: Moving, context: Any) -> Body:
    del context  # tracing depends on it
    for eqn in loop.body.eqns:
        once = _jax.effects_to_run_once(eqn)
        if once:
            raise UnsupportedEffect(
                f"the body of a loop contains {eqn.primitive.name} at {_jax.source_line(eqn)}, with a side effect "
                f"({', '.join(sorted({type(e).__name__ for e in once}))}) that the loop's backward pass would repeat. Move it "
                "out of the loop, returning what it needs as ys; if it is for debugging only, use the unordered "
                "jax.debug.callback or jax.debug.print."
            )
    moving, moving_ys = spread(loop, moving)
    carries = loop.split(moving)[1]

    def step(
        const_values: list[Any], carry: list[Any], x: list[Any], ct_carry: list[Any], ct_y: list[Any]
    ) -> tuple[list[Any], ...]:
        def of_moving(values: list[Any]) -> tuple[list[Any], list[Any]]:
            given = iter(values)
            filled = [next(given) if m else v for m, v in zip(moving, (*const_values, *carry, *x), strict=True)]
            out = [v for part in loop.run(*loop.split(filled)) for v in part]
            smooth = (*carries, *moving_ys)
            return [v for v, m in zip(out, smooth, strict=True) if m], [v for v, m in zip(out, smooth, strict=True) if not m]

        point = [v for v, m in zip((*const_values, *carry, *x), moving, strict=True) if m]
        smooth_out, pull, rest_out = jax.vjp(of_moving, point, has_aux=True)
        outs = [iter(rest_out), iter(smooth_out)]
        primal = [next(outs[m]) for m in (*carries, *moving_ys)]
        (grads,) = pull([*ct_carry, *ct_y])
        return primal, grads

    shapes = loop.split([_jax.shape_of(aval) for aval in loop.in_avals])
    carry_cts = [_strong(aval) for aval, m in zip(loop.out_avals[: loop.carries], carries, strict=True) if m]
    y_cts = [_strong(aval) for aval, m in zip(loop.out_avals[loop.carries :], moving_ys, strict=True) if m]
    jaxpr = jax.make_jaxpr(step)(*shapes, carry_cts, y_cts)
    return Body(loop, moving, moving_ys, flatten(jaxpr, calls=_CALLS))


def _strong(aval: Any) -> jax.ShapeDtypeStruct:
    return _jax.shape_of(aval.update(weak_type=False))


def strong(value: Any) -> Any:
    """The value, not promoting like a Python number: loops carry such types only."""
    return lax.convert_element_type(value, value.dtype) if getattr(jax.typeof(value), "weak_type", False) else value
