"""What a plan keeps and what it computes again, value by value, with the user's line and the reason."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from remat_lab.fuse import Fused
from remat_lab.kept import kept_values
from remat_lab.primitives import forbids_replay
from remat_lab.units import percent, size

KEPT, AGAIN, ONCE = "kept", "recomputed", "runs once"
_WIDE = 140  # columns of the table as text
_SHOWN = 40  # rows of the table as text


@dataclass(frozen=True, slots=True)
class Row:
    """One value of the forward pass.

    Attributes:
        decision: "kept" for the backward pass, "recomputed", or "runs once" if it may not be recomputed and is not needed late.
        bytes: its size.
        shape: its shape.
        dtype: its type.
        primitive: what computes it.
        source: the user's line.
        times: how often it is computed, the first time included.
        cost: of computing it once, as a fraction of everything computed once.
        forbidden: why it must not be computed again; None if it may be.
        why: the reason for the decision.
    """

    decision: str
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    primitive: str
    source: str
    times: int
    cost: float
    forbidden: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All values that a plan decides about; iterate over it, or print it as a table.

    Attributes:
        title: of what.
        rows: the largest values first.
        notes: what else the plan decided, a line for each: its loops.
    """

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def kept_bytes(self) -> int:
        """Size of all that is kept for the backward pass."""
        return sum(row.bytes for row in self.rows if row.decision == KEPT)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for heading, right in (("decision", 0), ("bytes", 1), ("type", 0), ("primitive", 0), ("source", 0), ("why", 0)):
            table.add_column(heading, justify="right" if right else "left", overflow="fold")
        for row in self.rows[:_SHOWN]:
            often = f" ×{row.times - 1}" if row.times > 2 else ""
            kind = f"{row.dtype}[{','.join(map(str, row.shape))}]"
            place = row.source.rsplit("/", 1)[-1]
            table.add_row(*map(_plain, (row.decision + often, size(row.bytes), kind, row.primitive, place, row.why)))
        file = io.StringIO()
        Console(file=file, width=_WIDE, color_system=None).print(table)
        lines = [self.title, *(line.rstrip() for line in file.getvalue().splitlines())]
        if len(self.rows) > _SHOWN:
            lines.append(f"and {len(self.rows) - _SHOWN} smaller ones")
        lines += [f"loop: {note}" for note in self.notes]
        return "\n".join(lines)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def explain(fused: Fused, again: Mapping[int, int], title: str, notes: tuple[str, ...] = ()) -> Explanation:
    """The decisions of a plan about the values of the forward pass.

    Args:
        fused: graph and program.
        again: for its steps, how often the plan computes them beyond the first time.
        title: what the table says above itself.
        notes: lines to add below it.
    """
    graph = fused.graph
    late = kept_values(graph, again)
    total = sum(graph.nodes[v].cost for v in graph.steps) or 1.0
    rows: list[Row] = []
    for v in graph.steps:
        if graph.nodes[v].backward:
            continue
        group, root = fused.groups[v], fused.root(v)
        forbidden = next(
            (
                reason
                for k in group.equations
                if (reason := forbids_replay(fused.program.equations[k].eqn) or fused.once.get(k)) is not None
            ),
            None,
        )
        for w, value in zip(graph.written(v), group.values or (None,), strict=False):
            aval = None if value is None else fused.program.avals[value]
            kept = w in late
            if not (kept or v in again or forbidden):
                continue
            decision = AGAIN if v in again else KEPT if kept else ONCE
            cost = graph.nodes[v].cost / total
            rows.append(
                Row(
                    decision=decision,
                    bytes=graph.nodes[w].size,
                    shape=tuple(getattr(aval, "shape", ())),
                    dtype=str(getattr(aval, "dtype", "effect")),
                    primitive=root.name,
                    source=root.source_line,
                    times=1 + again.get(v, 0),
                    cost=cost,
                    forbidden=forbidden,
                    why=_why(decision, cost, graph.nodes[w].size, forbidden, graph.may_recompute(v)),
                )
            )
    return Explanation(title, tuple(sorted(rows, key=lambda row: -row.bytes)), notes)


def _why(decision: str, cost: float, nbytes: int, forbidden: str | None, may_recompute: bool) -> str:
    share = f"{percent(cost, sign=False, digits=2)} of the step's cost"
    if forbidden is not None:
        return f"must not be computed again: {forbidden}"
    if decision == AGAIN:
        return f"{size(nbytes)} are freed for {share}"
    if not may_recompute:
        return "kept on request"
    return f"computing it again would be {share} for {size(nbytes)}"
