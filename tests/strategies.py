"""Hypothesis strategies: small graphs of every kind that the solvers may meet, and valid orders over them."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import strategies as st

from solvers.graph import Graph, Node, training_chain


@st.composite
def graphs(
    draw: st.DrawFn,
    *,
    min_nodes: int = 1,
    max_nodes: int = 9,
    unit: bool | None = None,
    parts: bool = True,
    restricted: bool = True,
    workspace: bool = True,
    external: bool = True,
) -> Graph:
    """Any graph.

    Args:
        draw: given by hypothesis.
        min_nodes: fewest nodes.
        max_nodes: most nodes.
        unit: whether all costs and sizes are 1; None for either.
        parts: whether steps may write several values.
        restricted: whether some nodes may not be recomputed.
        workspace: whether steps may need workspace.
        external: whether outputs may live in the caller's buffers.
    """
    n = draw(st.integers(min_nodes, max_nodes))
    same = draw(st.booleans()) if unit is None else unit
    nodes: list[Node] = []
    for v in range(n):
        size = 1 if same else draw(st.integers(0, 9))
        leads = [u for u in range(v) if nodes[u].part_of is None]
        if parts and v and draw(st.integers(0, 7)) == 0:
            nodes.append(Node(f"n{v}", 0, size, part_of=draw(st.sampled_from(leads))))
            continue
        deps = draw(st.sets(st.integers(max(0, v - 5), v - 1), max_size=3)) if v else set()
        nodes.append(
            Node(
                f"n{v}",
                1 if same else draw(st.integers(0, 9)),
                size,
                tuple(sorted(deps)),
                workspace=draw(st.sampled_from([0, 0, 0, 2, 5])) if workspace and not same else 0,
                recomputable=not (restricted and draw(st.integers(0, 4)) == 0),
                backward=restricted and v >= n // 2 and draw(st.integers(0, 4)) == 0,
            )
        )
    outputs = {n - 1, *draw(st.sets(st.integers(0, n - 1), max_size=1))}
    if external:
        for o in outputs:
            if draw(st.booleans()):
                nodes[o] = replace(nodes[o], external=True)
    return Graph(tuple(nodes), tuple(outputs))


@st.composite
def training_graphs(draw: st.DrawFn, *, min_layers: int = 2, max_layers: int = 8) -> Graph:
    """A forward pass with skips, steps with two results and steps that run once, and a backward pass that mirrors it."""
    n = draw(st.integers(min_layers, max_layers))
    nodes: list[Node] = []
    layers: list[int] = []
    masks: list[int | None] = []
    skips: list[int | None] = []
    for i in range(n):
        reads = {layers[-1]} if layers else set[int]()
        skip = draw(st.sampled_from(layers[:-1])) if len(layers) > 1 and draw(st.integers(0, 3)) == 0 else None
        if skip is not None:
            reads.add(skip)
        once = draw(st.integers(0, 5)) == 0
        layers.append(len(nodes))
        skips.append(skip)
        cost, size = draw(st.integers(1, 9)), draw(st.integers(1, 9))
        nodes.append(Node(f"f{i}", cost, size, tuple(sorted(reads)), recomputable=not once))
        kind = draw(st.sampled_from(["none", "none", "part", "mask"]))
        masks.append(len(nodes) if kind != "none" else None)
        if kind == "part":
            nodes.append(Node(f"s{i}", 0, draw(st.integers(0, 3)), part_of=layers[-1]))
        if kind == "mask":
            nodes.append(Node(f"m{i}", 1, draw(st.integers(0, 3)), (layers[-1],)))
    for i in reversed(range(n)):
        reads = {layers[i], len(nodes) - 1}
        reads |= {u for u in (masks[i], skips[i], layers[i - 1] if i else None) if u is not None}
        cost, size = draw(st.integers(1, 9)), draw(st.integers(1, 9))
        nodes.append(Node(f"b{i}", cost, size, tuple(sorted(reads)), backward=True, external=i == 0))
    return Graph(tuple(nodes), (len(nodes) - 1,))


@st.composite
def orders(draw: st.DrawFn, graph: Graph, *, max_again: int = 8) -> list[int]:
    """A valid order of computations, with first computations as given and recomputations of random steps in between."""
    order: list[int] = []
    again = [v for v in graph.steps if graph.may_recompute(v)]
    left = draw(st.integers(0, max_again)) if again else 0
    for v in graph.steps:
        order.append(v)
        candidates = [u for u in again if u <= v]
        while left and candidates and draw(st.booleans()):
            order.append(draw(st.sampled_from(candidates)))
            left -= 1
    return order


def random_graph(rng: random.Random, *, max_nodes: int = 9) -> Graph:
    """Any graph, as `graphs` makes them, from a seed: the same for everyone who asks."""
    n, unit = rng.randint(1, max_nodes), rng.random() < 0.3
    flags = rng.random() < 0.6
    nodes: list[Node] = []
    for v in range(n):
        size = 1 if unit else rng.randint(0, 9)
        leads = [u for u in range(v) if nodes[u].part_of is None]
        if leads and rng.random() < 0.12:
            nodes.append(Node(f"n{v}", 0, size, part_of=rng.choice(leads)))
            continue
        deps = sorted({rng.randrange(max(0, v - 5), v) for _ in range(rng.randint(0, 3))}) if v else []
        nodes.append(
            Node(
                f"n{v}",
                1 if unit else rng.randint(0, 9),
                size,
                tuple(deps),
                workspace=rng.choice((0, 0, 0, 2, 5)) if not unit else 0,
                recomputable=not (flags and rng.random() < 0.15),
                backward=flags and v >= n // 2 and rng.random() < 0.3,
            )
        )
    outputs = {n - 1, *(rng.randrange(n) for _ in range(rng.random() < 0.3))}
    for o in outputs:
        if rng.random() < 0.3:
            nodes[o] = replace(nodes[o], external=True)
    return Graph(tuple(nodes), tuple(outputs))


def random_training_graph(rng: random.Random, *, max_layers: int = 4) -> Graph:
    """A forward pass with skips and its mirrored backward pass, with at most 9 nodes; a layer may have workspace or a part."""
    n, unit = rng.randint(2, max_layers), rng.random() < 0.3

    def amount() -> int:
        return 1 if unit else rng.randint(1, 9)

    nodes: list[Node] = []
    layers: list[int] = []
    reads: list[set[int]] = []
    for i in range(n):
        found = {layers[-1]} if layers else set[int]()
        if len(layers) > 1 and rng.random() < 0.3:
            found.add(rng.choice(layers[:-1]))
        reads.append(found)
        layers.append(len(nodes))
        nodes.append(Node(f"f{i}", amount(), amount(), tuple(sorted(found)), workspace=rng.choice((0, 0, 2))))
    if rng.random() < 0.3:
        part = len(nodes)
        nodes.append(Node("part", 0, amount(), part_of=rng.choice(layers)))
        reads[-1] = reads[-1] | {part}
    for i in reversed(range(n)):
        above = {len(nodes) - 1} if i < n - 1 else set[int]()
        deps = tuple(sorted(reads[i] | above | {layers[i]}))
        nodes.append(Node(f"b{i}", amount(), amount(), deps, backward=True, external=i == 0 and rng.random() < 0.7))
    return Graph(tuple(nodes), (len(nodes) - 1,))


def random_chain(rng: random.Random, *, max_layers: int = 4) -> Graph:
    """A training chain: uniform, uneven, or with backward steps that read only one side of their layer."""
    n, kind = rng.randint(1, max_layers), rng.choice(("uniform", "uneven", "one-sided"))
    model = training_chain(n, rng.randint(1, 4), rng.randint(1, 4))
    if kind == "uniform":
        return model
    nodes = [replace(node, cost=rng.randint(1, 6), size=rng.randint(1, 6)) for node in model.nodes]
    if kind == "one-sided":
        for v in range(n + 1, 2 * n):
            layer = 2 * n - 1 - v
            dropped = rng.choice((layer, layer - 1))
            if layer and dropped in nodes[v].deps:
                nodes[v] = replace(nodes[v], deps=tuple(u for u in nodes[v].deps if u != dropped))
        for v in range(n):
            nodes[v] = replace(nodes[v], workspace=rng.choice((0, 0, 3)))
    return Graph(tuple(nodes), model.outputs)
