"""Segments → function: a forward program cut into `jax.checkpoint` regions with named values, for every transform.

Equations are bound again, never inlined, so that custom derivative rules, the user's own checkpoints and names, sharding
constraints and source lines survive. Each matrix product or convolution takes its operands through one
`optimization_barrier`; its result passes another, with the parameters that the equations up to the next one read. Their
transposes tie gradients together: those of the weights are computed before the backward pass goes on, instead of holding their
inputs until the end. What a region reads is tied in the same way, that of the last one too: a parameter may be read in another
region than the product before it. The loss is tied to the start of the backward pass. Inside of each leaf every layer is a
region again, see `layers`.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from remat_lab import _jax
from remat_lab.barriers import barrier, before_backward, written
from remat_lab.errors import UnsupportedEffect
from remat_lab.flatten import Equation, Program
from remat_lab.keep import SaveNamed
from remat_lab.layers import split
from remat_lab.layouts import in_default_layout
from remat_lab.naming import bind_named
from remat_lab.primitives import RANDOM

_ORDERED = frozenset("dot_general conv_general_dilated".split())
_SCOPE = "remat_lab_equation_"
_NUMBER = re.compile(_SCOPE + r"(\d+)")


@dataclass(frozen=True, slots=True)
class Region:
    """Equations start..stop-1. All children but the last are checkpointed; equations outside children do not exist.

    Attributes:
        start: first equation.
        stop: one past the last.
        children: regions that partition it; empty for a leaf.
    """

    start: int
    stop: int
    children: tuple[Region, ...] = ()


@dataclass(frozen=True)
class Layout:
    """How a forward program is cut and what it keeps.

    Attributes:
        root: the whole program.
        names: names of the values kept inside checkpointed regions.
        ordered: whether products and convolutions tie their operands.
        marked: whether equations run in a scope that tells their number, see `number_of`.
        simulated: whether this is for a graph only, in which layouts play no part.
        within: names of further values that the layers inside of a region keep while the region is differentiated.
        handed: names of values that a region hands on to later ones; those in `within` have the same name there.
        written: values that are written to memory wherever they are computed, see `layers.reduced`.
    """

    root: Region
    names: dict[int, str] = field(default_factory=dict[int, str])
    ordered: bool = True
    marked: bool = False
    simulated: bool = False
    within: dict[int, str] = field(default_factory=dict[int, str])
    handed: dict[int, str] = field(default_factory=dict[int, str])
    written: frozenset[int] = frozenset()

    @property
    def policy(self) -> Any:
        """The `jax.checkpoint` policy of every region, but for what it hands on; equal for equal names."""
        return SaveNamed(frozenset(self.names.values())) if self.names else None

    def policy_of(self, writes: Sequence[int]) -> Any:
        """The `jax.checkpoint` policy of a region: what it hands on is there for the next one, so it need not be made again."""
        names = frozenset((*self.names.values(), *(self.handed[v] for v in writes if v in self.handed)))
        return SaveNamed(names) if names else None

    @property
    def layer_policy(self) -> Any:
        """The `jax.checkpoint` policy of every layer."""
        return SaveNamed(frozenset((*self.names.values(), *self.within.values(), *self.handed.values())))

    def name_of(self, value: int) -> str | None:
        """The name that a value gets."""
        return self.names.get(value) or self.within.get(value) or self.handed.get(value)


class Emitter:
    """Runs one program under one layout. Regions are the same function objects on each call, so that JAX's caches hit."""

    def __init__(self, program: Program, layout: Layout):
        self.program, self.layout = program, layout
        self.last_read: dict[int, int] = {}
        for k, q in enumerate(program.equations):
            for v in q.reads:
                self.last_read[v] = k
        for out in program.outputs:
            if isinstance(out, int):
                self.last_read[out] = len(program.equations)
        self._keys = frozenset(v for q in program.equations if q.name in RANDOM for v in q.reads if not self._is_inexact(v))
        self._companions = _companions(program, self._keys)
        self._parameters = frozenset(v for v in program.inputs if self._is_inexact(v))
        self._effects = frozenset(k for k, q in enumerate(program.equations) if q.eqn.effects and not q.outs)
        results = [v for v in self.last_read if v in program.outputs and self._is_inexact(v)]
        self._scalars = [v for v in results if _is_real_scalar(program.avals[v])]
        self._others = [v for v in results if v not in self._scalars and v in program.producer]
        self._leaves: dict[int, list[Region]] = {}
        self._regions: dict[int, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {}

    def run(self, constants: dict[int, Any], args: Sequence[Any]) -> list[Any]:
        """The program's outputs for its inputs and closed-over arrays."""
        env = {**constants, **dict(zip(self.program.inputs, args, strict=True))}
        self._inside(self.layout.root, env, outermost=True)
        if self.layout.root.children and self.layout.ordered and self._scalars:
            losses, others = before_backward([env[v] for v in self._scalars], [env[v] for v in self._others])
            env.update(zip((*self._scalars, *self._others), (*losses, *others), strict=True))
        return [v.val if isinstance(v, _jax.Literal) else env[v] for v in self.program.outputs]

    def _inside(self, region: Region, env: dict[int, Any], *, outermost: bool = False) -> None:
        """Runs a region; effects only outside of everything that is computed again, each once and in their order."""
        if not region.children:
            for layer in self._layers(region):
                if layer.stop - layer.start > 1:
                    run, reads, writes = self._layer(layer)
                    env.update(zip(writes, run(*(env[v] for v in reads)), strict=True))
                elif outermost or layer.start not in self._effects:
                    self._equation(layer.start, env)
            return
        for child in region.children[:-1]:
            run, reads, writes = self._region(child)
            self._tie(reads, env)
            env.update(zip(writes, run(*(env[v] for v in reads)), strict=True))
            for k in range(child.start, child.stop) if outermost else ():
                if k in self._effects:
                    self._equation(k, env)
        self._tie(self._interface(region.children[-1])[0], env)
        self._inside(region.children[-1], env, outermost=outermost)

    def _layers(self, leaf: Region) -> list[Region]:
        """A leaf's layers, and the equations between them one by one."""
        if id(leaf) not in self._leaves:
            edges = split(self.program, leaf.start, leaf.stop)
            # Nothing is computed again in a root; and JAX_REMAT3 has no forward mode of regions in regions that keep names.
            if leaf is self.layout.root or _jax.is_new_checkpoint():
                edges = [(k, k + 1) for k in range(leaf.start, leaf.stop)]
            self._leaves[id(leaf)] = [Region(start, stop) for start, stop in edges]
        return self._leaves[id(leaf)]

    def _layer(self, layer: Region) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
        if id(layer) not in self._regions:
            reads, writes = self._interface(layer)

            def body(*values: Any) -> list[Any]:
                env = dict(zip(reads, values, strict=True))
                for k in range(layer.start, layer.stop):
                    self._equation(k, env)
                self._hold_back(reads, made, env)
                return [env[v] for v in writes]

            made, writes = writes, (*writes, *self._passed(layer, reads))
            self._regions[id(layer)] = (jax.checkpoint(body, policy=self.layout.layer_policy), reads, writes)
        return self._regions[id(layer)]

    def _region(self, region: Region) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
        if id(region) not in self._regions:
            _refuse_effects([self.program.equations[k] for k in range(region.start, region.stop) if k not in self._effects])
            reads, writes = self._interface(region)

            def body(*values: Any) -> list[Any]:
                env = dict(zip(reads, values, strict=True))
                self._inside(region, env)
                return [env[v] for v in writes]

            policy, writes = self.layout.policy_of(writes), (*writes, *self._passed(region, reads))
            self._regions[id(region)] = (jax.checkpoint(body, policy=policy), reads, writes)
        return self._regions[id(region)]

    def _interface(self, region: Region) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What a region reads from before it, and what it makes that is read after it; effects are none of its equations."""
        span = range(region.start, region.stop)
        equations = [self.program.equations[k] for k in span if k not in self._effects]
        shown = {v for k in span if k in self._effects for v in self.program.equations[k].reads}
        made = [o for q in equations for o in q.outs]
        inside = set(made)
        reads = tuple(dict.fromkeys(v for q in equations for v in q.reads if v not in inside))
        return reads, tuple(o for o in made if self.last_read.get(o, -1) >= region.stop or o in shown)

    def _passed(self, region: Region, reads: Sequence[int]) -> tuple[int, ...]:
        """Values that a region reads more than once and passes on to later readers, so that gradients are summed as in JAX.

        There each reader's gradient is added to the sum of all later ones'. A region would first sum up the gradients inside of
        it: the same numbers, added in another order.
        """
        uses = Counter(v for q in self.program.equations[region.start : region.stop] for v in q.ins if isinstance(v, int))
        return tuple(v for v in reads if uses[v] > 1 and self._is_inexact(v) and self.last_read[v] >= region.stop)

    def _equation(self, k: int, env: dict[int, Any]) -> None:
        q = self.program.equations[k]
        if k in self._companions:
            self._tie(tuple(dict.fromkeys(q.reads)), env)
            if self.layout.ordered and not self.layout.simulated:
                env.update({v: in_default_layout(env[v]) for v in q.reads if v in self._parameters})
        values = [v.val if isinstance(v, _jax.Literal) else env[v] for v in q.ins]
        names = [self.layout.name_of(o) for o in q.outs]
        with jax.named_scope(f"{_SCOPE}{k}") if self.layout.marked else contextlib.nullcontext():
            env.update(zip(q.outs, bind_named(q, values, names, kept=bool(self.layout.root.children)), strict=True))
        env.update({o: written(env[o]) for o in self.layout.written.intersection(q.outs)})
        if k in self._companions:
            self._tie([*q.outs, *(v for v in self._companions[k] if v in env)], env)

    def _tie(self, reads: Sequence[int], env: dict[int, Any]) -> None:
        tied = [v for v in reads if self._may_tie(v)]
        if self.layout.ordered and len(tied) > 1:
            env.update(zip(tied, barrier([env[v] for v in tied]), strict=True))

    def _hold_back(self, reads: Sequence[int], writes: Sequence[int], env: dict[int, Any]) -> None:
        """Gives a layer's results away only when the masks that it keeps are written.

        In the forward pass a mask is read in the kernel that makes it: XLA would write it when the backward pass begins, and
        hold what it is computed from, random bits of four times its size, until then.
        """
        kept = [*reads, *(v for v in env if self.layout.name_of(v) is not None)]
        masks = [v for v in dict.fromkeys(kept) if v in self.program.producer and self.program.avals[v].dtype == bool]
        tied = [v for v in writes if self._may_tie(v)]
        if masks and tied and self.layout.ordered:
            env.update(zip(tied, barrier([env[v] for v in tied], [env[v] for v in masks]), strict=True))

    def _may_tie(self, v: int) -> bool:
        return v in self._keys or self._is_inexact(v)

    def _is_inexact(self, v: int) -> bool:
        dtype = getattr(self.program.avals[v], "dtype", None)
        return dtype is not None and bool(jax.dtypes.issubdtype(dtype, jax.numpy.inexact))


def number_of(equation: Equation) -> int | None:
    """The number of the forward equation that an equation of a marked program, or of its derivative, comes from."""
    found = [int(n) for eqn in (equation.eqn, *equation.calls) for n in _NUMBER.findall(_jax.scopes_of(eqn))]
    return max(found, default=None)


def _is_real_scalar(aval: Any) -> bool:
    return getattr(aval, "shape", None) == () and bool(jax.dtypes.issubdtype(aval.dtype, jax.numpy.floating))


def _refuse_effects(equations: Sequence[Equation]) -> None:
    for q in equations:
        once = _jax.effects_to_run_once(q.eqn)
        if once:
            effects = ", ".join(sorted(map(str, once)))
            raise UnsupportedEffect(
                f"{q.name} at {q.source_line} has a result and a side effect ({effects}), which a region of jax.checkpoint "
                "would repeat in the backward pass. Use Plan.value_and_grad, whose exact schedule runs it once, or call it "
                "outside of the loss and pass its result as an argument."
            )


def _multiplies(eqn: _jax.Equation) -> bool:
    """Whether an equation is a product or convolution, or contains one (a user's custom rule, a loop)."""
    return eqn.primitive.name in _ORDERED or any(_multiplies(inner) for body in _jax.sub_jaxprs(eqn) for inner in body.eqns)


def _companions(program: Program, keys: Collection[int]) -> dict[int, tuple[int, ...]]:
    """For each product or convolution, what there is before it and is read after it and before the next one.

    That are parameters read for the first time, and random keys: without their tie XLA may draw the bits of all layers first.
    """
    inputs, seen = set(program.inputs), set[int]()
    found: dict[int, dict[int, None]] = {}
    last: int | None = None
    for k, q in enumerate(program.equations):
        if _multiplies(q.eqn):
            last = k
            found[k] = {}
        for v in q.reads:
            first = v in inputs and v not in seen
            seen.add(v)
            if last is not None and last != k and (first or (v in keys and program.producer.get(v, -1) < last)):
                found[last][v] = None
    return {k: tuple(vs) for k, vs in found.items()}
