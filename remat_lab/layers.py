"""Layers: runs of equations that XLA computes inside of the kernels around them, between products, convolutions and the like.

A policy's regions say which heavy results are computed again. What is light is computed again by XLA in any case, as a part of
the kernels that read it, but XLA chooses when, and what to write: `x - mean`, say, in the forward pass, to be read in the
backward pass long after. So each layer is a region of its own, inside of every leaf, the last one too: its light values are
computed again right where its own backward pass begins, from what is in memory anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from remat_lab import _jax
from remat_lab.flatten import Program
from remat_lab.primitives import CALLS, FUSIBLE, REDUCTIONS
from remat_lab.steps import Fused, base_values
from solvers.graph import Graph

_LIGHT = FUSIBLE | REDUCTIONS


def is_light(eqn: _jax.Equation) -> bool:
    """Whether XLA computes an equation inside of other kernels, or it reduces what is computed there."""
    name = eqn.primitive.name
    if eqn.effects or name.startswith("custom_vjp"):  # what a user's own rule keeps cannot be asked for by name
        return False
    if name in CALLS:
        return all(is_light(inner) for body in _jax.sub_jaxprs(eqn) for inner in body.eqns)
    return name in _LIGHT


def split(program: Program, start: int, stop: int) -> list[tuple[int, int]]:
    """Ranges that partition the equations start..stop-1: runs of light ones, and each other one alone."""
    heavy = [k for k in range(start, stop) if not is_light(program.equations[k].eqn)]
    edges = sorted({start, stop, *heavy, *(k + 1 for k in heavy)})
    return list(pairwise(edges))


def reduced(program: Program, values: Iterable[int]) -> frozenset[int]:
    """Those of the values that light equations make and reductions read.

    Left alone, XLA:CPU computes them inside of the kernel of the reduction where it can. That kernel can be a whole softmax: it
    knows arithmetic, but no selection and nothing that others read too, so it has such operands written for it, one array each,
    instead of the one value.
    """
    equations = program.equations
    return frozenset(
        v
        for v in values
        if (k := program.producer.get(v)) is not None
        and is_light(equations[k].eqn)
        and any(_reduces(equations[r].eqn) for r in program.readers.get(v, ()))
    )


def _reduces(eqn: _jax.Equation) -> bool:
    name = eqn.primitive.name
    return name in REDUCTIONS or (name in CALLS and any(_reduces(q) for body in _jax.sub_jaxprs(eqn) for q in body.eqns))


def costs_nothing(fused: Fused, v: int) -> bool:
    """Whether a step of the forward pass can be computed again inside of the kernels that read it in the backward pass.

    It can if all its equations are light, and what they read is there for the backward pass anyway or smaller than the step's
    own result.
    """
    graph = fused.graph
    if not all(is_light(fused.program.equations[k].eqn) for k in fused.groups[v].equations):
        return False
    size = sum(graph.nodes[w].charge for w in graph.written(v))
    last = max((r for w in graph.written(v) for r in graph.readers[w]), default=-1)
    return all(graph.nodes[u].charge < size or max(graph.readers[u]) >= last for u in graph.nodes[v].deps)


def fading(forward: Program, fused: Fused, values_of: Mapping[int, tuple[int, ...]]) -> frozenset[int]:
    """Steps of the forward pass whose results stay inside of their layer and cost nothing: they need no memory of their own.

    Args:
        forward: the forward program.
        fused: forward and backward pass as a graph whose nodes are numbered in its order.
        values_of: for steps whose results exist in the forward program, those.
    """
    layer: dict[int, int] = {}
    for number, (start, stop) in enumerate(split(forward, 0, len(forward.equations))):
        layer.update(dict.fromkeys(range(start, stop), number))
    base, base_of_all = base_values(forward), base_values(fused.program)
    readers: dict[int, set[int]] = {}
    for k, q in enumerate(forward.equations):
        for v in q.reads:
            readers.setdefault(base[v], set()).add(layer[k])
    outputs = {base[v] for v in forward.outputs if isinstance(v, int)}

    def stays(v: int) -> bool:
        made = values_of.get(v, ())
        return all(w not in outputs and readers.get(w, set()) <= {layer[forward.producer[w]]} for w in made)

    def is_written_for(v: int) -> bool:
        """Whether a kernel of its own reads what the step writes."""
        program, written = fused.program, set(fused.groups[v].values)
        late = {fused.graph.step_of(r) for w in fused.graph.written(v) for r in fused.graph.readers[w]}
        equations = (program.equations[k] for r in late for k in fused.groups[r].equations)
        return any(not is_light(q.eqn) and any(base_of_all[u] in written for u in q.reads) for q in equations)

    return frozenset(
        v
        for v in fused.graph.steps
        if fused.graph.may_recompute(v) and costs_nothing(fused, v) and stays(v) and not is_written_for(v)
    )


def without(graph: Graph, steps: Collection[int]) -> Graph:
    """The graph in which the results of some steps take no bytes."""
    gone = {w for v in steps for w in graph.written(v)}
    return Graph(tuple(replace(n, size=0) if w in gone else n for w, n in enumerate(graph.nodes)), graph.outputs)
