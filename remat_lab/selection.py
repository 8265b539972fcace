"""Values that the user wants kept or recomputed, by checkpoint name or by predicate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_lab import _jax
from remat_lab.errors import InvalidArgument
from remat_lab.flatten import Program
from remat_lab.fuse import Fused
from remat_lab.primitives import VIEWS
from solvers.graph import Graph


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value of the forward program, as a predicate for `must_save` or `must_recompute` sees it.

    Attributes:
        primitive: name of the JAX primitive that makes it.
        shape: its shape.
        dtype: its dtype.
        nbytes: its size in bytes.
        source_line: the user's line.
    """

    primitive: str
    shape: tuple[int, ...]
    dtype: Any
    nbytes: int
    source_line: str


Selection = Sequence[str] | Callable[[Candidate], bool]


def select_values(forward: Program, wanted: Selection) -> frozenset[int]:
    """Values that the user means: by checkpoint name, and what a name is a copy of, or by predicate."""
    if callable(wanted):
        return frozenset(
            o
            for q in forward.equations
            for o in q.outs
            if wanted(Candidate(q.name, forward.avals[o].shape, forward.avals[o].dtype, forward.bytes[o], q.source_line))
        )
    present: dict[str, list[int]] = {}
    for q in forward.equations:
        name = _jax.checkpoint_name_of(q.eqn)
        if name is not None:
            present.setdefault(name, []).extend((*q.reads, *q.outs))
    unknown = sorted(set(wanted) - set(present))
    if unknown:
        raise InvalidArgument(f"no value is named {unknown}: the names in this function are {sorted(present) or 'none'}")
    return frozenset(v for name in wanted for v in present[name])


def keep_always(fused: Fused, must_save: Selection) -> Fused:
    """The same graph, in which the steps that make certain values may not run twice."""
    made_by = {v: q for q in fused.program.equations for v in q.outs}
    fixed: set[int] = set()
    for value in select_values(fused.program, must_save):
        while value not in fused.node_of and value in made_by and made_by[value].name in VIEWS and made_by[value].reads:
            value = made_by[value].reads[0]
        if value in fused.node_of:
            fixed.add(fused.graph.step_of(fused.node_of[value]))
    if not fixed:
        return fused
    nodes = tuple(replace(node, recomputable=False) if v in fixed else node for v, node in enumerate(fused.graph.nodes))
    return replace(fused, graph=Graph(nodes, fused.graph.outputs))
