"""The problem: values to compute, what each costs, how large it is, and what it reads."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from solvers.errors import InvalidGraph


@dataclass(frozen=True, slots=True)
class Node:
    """One value and the step that computes it.

    Attributes:
        name: for people; need not be unique.
        cost: cost of computing it once, in any one unit (FLOPs, seconds); finite and not negative.
        size: bytes that the value occupies while it is live.
        deps: positions of the nodes that its step reads.
        workspace: extra bytes needed only while the step runs.
        recomputable: whether the step may run more than once.
        backward: whether it belongs to the backward pass; no solver recomputes these.
        part_of: position of the node whose step also writes this value, for steps with several results. Such a node has no
            cost, no dependencies and no step of its own, and is freed separately.
        external: whether the value lives in a buffer of the caller (a program output). Its bytes are charged to the whole
            program's peak, not to the budget.
    """

    name: str
    cost: float
    size: int
    deps: tuple[int, ...] = ()
    workspace: int = 0
    recomputable: bool = True
    backward: bool = False
    part_of: int | None = None
    external: bool = False

    @property
    def charge(self) -> int:
        """Bytes that the value takes out of the budget while it is live."""
        return 0 if self.external else self.size


@dataclass(frozen=True)
class Graph:
    """Nodes in a topological order, and the values that must be live at the end.

    Attributes:
        nodes: each reads only earlier ones.
        outputs: positions of the values that must be live when the schedule ends.

    Raises:
        InvalidGraph: with the node at fault and what to change.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "outputs", tuple(sorted(set(self.outputs))))
        if not self.nodes:
            raise InvalidGraph("a graph needs at least one node")
        for v, node in enumerate(self.nodes):
            _check_node(self.nodes, v, node)
        for o in self.outputs:
            if not 0 <= o < len(self.nodes):
                raise InvalidGraph(f"output {o} is not a node: there are {len(self.nodes)} nodes, numbered from 0")

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Nodes that have a step of their own, in the given order: the order that keeps everything."""
        return tuple(v for v, node in enumerate(self.nodes) if node.part_of is None)

    @cached_property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the further values that its step writes."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for v, node in enumerate(self.nodes):
            if node.part_of is not None:
                found[node.part_of].append(v)
        return tuple(map(tuple, found))

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes whose steps read it, in order."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for v, node in enumerate(self.nodes):
            for u in dict.fromkeys(node.deps):
                found[u].append(v)
        return tuple(map(tuple, found))

    @cached_property
    def keep_all_cost(self) -> float:
        """Cost of computing every node once.

        Also nodes that nobody needs: `simulate` lets a schedule leave them out, but no solver does, and bounds count them.
        """
        return math.fsum(node.cost for node in self.nodes)

    def step_of(self, node: int) -> int:
        """The node whose step writes this value."""
        lead = self.nodes[node].part_of
        return node if lead is None else lead

    def written(self, node: int) -> tuple[int, ...]:
        """All values that the step of `node` writes."""
        return (node, *self.parts[node])

    def may_recompute(self, node: int) -> bool:
        """Whether the step of this node may run more than once."""
        lead = self.nodes[self.step_of(node)]
        return lead.recomputable and not lead.backward

    @cached_property
    def structural_hash(self) -> str:
        """Equal for graphs that differ only in names."""
        rows = [
            [n.cost, n.size, list(n.deps), n.workspace, n.recomputable, n.backward, n.part_of, n.external] for n in self.nodes
        ]
        return hashlib.sha256(json.dumps([rows, self.outputs]).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready description; `from_json` reads it back unchanged."""
        return {"nodes": [_node_to_json(node) for node in self.nodes], "outputs": list(self.outputs)}

    @classmethod
    def from_json(cls, data: Any) -> Graph:
        """Reads `to_json`'s form, or the plain form whose nodes have name, cost, size, deps, backward and no `outputs`.

        In the plain form the last node is the only output and every value counts against the budget.

        Raises:
            InvalidGraph: if a field is missing or has the wrong type.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("nodes"), list):
            raise InvalidGraph('a graph file holds an object with a list "nodes"')
        nodes = tuple(_node_from_json(v, row) for v, row in enumerate(data["nodes"]))
        outputs = data.get("outputs", [len(nodes) - 1])
        if not isinstance(outputs, list) or not all(_is_int(o) for o in outputs):
            raise InvalidGraph('"outputs" is a list of node positions')
        return cls(nodes, tuple(outputs))

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Reads a graph from a JSON file.

        Raises:
            InvalidGraph: if the file cannot be read or does not hold a graph.
        """
        try:
            data = json.loads(Path(path).read_text())
        except OSError as error:
            raise InvalidGraph(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise InvalidGraph(f"{path} is not a JSON file: {error}") from error
        try:
            return cls.from_json(data)
        except InvalidGraph as error:
            raise InvalidGraph(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes the graph as JSON."""
        Path(path).write_text(json.dumps(self.to_json()))


def chain(costs: Iterable[float], sizes: Iterable[int]) -> Graph:
    """A forward-only chain, each node reading the one before; the last is the output."""
    rows = list(zip(costs, sizes, strict=True))
    nodes = tuple(Node(f"n{v}", c, s, (v - 1,) if v else ()) for v, (c, s) in enumerate(rows))
    return Graph(nodes, (len(nodes) - 1,))


def training_chain(n: int, size: int = 1, cost: float = 1) -> Graph:
    """A chain of n layers with its backward pass: 2n nodes.

    Backward node i reads the gradient from above, the layer's output and its input; the last one is the output and lives in
    the caller's buffer.
    """
    forward = [Node(f"f{i}", cost, size, (i - 1,) if i else ()) for i in range(n)]
    nodes = list(forward)
    for i in reversed(range(n)):
        above = (len(nodes) - 1,) if i < n - 1 else ()
        reads = tuple(u for u in (i - 1, i) if u >= 0) + above
        nodes.append(Node(f"b{i}", cost, size, reads, backward=True, external=i == 0))
    return Graph(tuple(nodes), (len(nodes) - 1,))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_node(nodes: tuple[Node, ...], v: int, node: Node) -> None:
    where = f"node {v} ({node.name!r})"
    if not (isinstance(node.cost, int | float) and math.isfinite(node.cost) and node.cost >= 0):
        raise InvalidGraph(f"{where} has cost {node.cost!r}: a cost is a finite number, zero or more")
    for label, value in (("size", node.size), ("workspace", node.workspace)):
        if not _is_int(value) or value < 0:
            raise InvalidGraph(f"{where} has {label} {value!r}: bytes are a whole number, zero or more")
    for u in node.deps:
        if not _is_int(u) or not 0 <= u < len(nodes):
            raise InvalidGraph(f"{where} reads node {u!r}, which does not exist: there are {len(nodes)} nodes, numbered from 0")
        if u >= v:
            raise InvalidGraph(
                f"{where} reads node {u}, which comes later or is itself: list nodes in topological order (no cycles)"
            )
    if node.part_of is not None:
        lead = node.part_of
        if not _is_int(lead) or not 0 <= lead < v or nodes[lead].part_of is not None:
            raise InvalidGraph(f"{where} is part of node {lead!r}: that must be an earlier node with a step of its own")
        if node.deps or node.cost or node.workspace:
            raise InvalidGraph(f"{where} is part of node {lead}: dependencies, cost and workspace belong to that node")


_OPTIONAL = {"workspace": 0, "recomputable": True, "backward": False, "part_of": None, "external": False}


def _node_to_json(node: Node) -> dict[str, Any]:
    row: dict[str, Any] = {"name": node.name, "cost": node.cost, "size": node.size, "deps": list(node.deps)}
    for key, default in _OPTIONAL.items():
        if getattr(node, key) != default:
            row[key] = getattr(node, key)
    return row


def _node_from_json(v: int, row: Any) -> Node:
    if not isinstance(row, Mapping):
        raise InvalidGraph(f"node {v} is {row!r}: a node is an object with name, cost, size and deps")
    missing = [key for key in ("cost", "size", "deps") if key not in row]
    if missing:
        raise InvalidGraph(f"node {v} lacks {', '.join(missing)}")
    if not isinstance(row["deps"], list):
        raise InvalidGraph(f"node {v} has deps {row['deps']!r}: a list of node positions")
    unknown = set(row) - {"name", "cost", "size", "deps", *_OPTIONAL}
    if unknown:
        raise InvalidGraph(
            f"node {v} has unknown fields {sorted(unknown)}: known are name, cost, size, deps, {', '.join(_OPTIONAL)}"
        )
    for key in ("recomputable", "backward", "external"):
        if not isinstance(row.get(key, False), bool):
            raise InvalidGraph(f"node {v} has {key} {row[key]!r}: true or false")
    size = row["size"]
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    return Node(
        name=str(row.get("name", f"n{v}")),
        cost=row["cost"],
        size=size,
        deps=tuple(row["deps"]),
        **{key: row.get(key, default) for key, default in _OPTIONAL.items()},
    )
