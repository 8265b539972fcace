"""The graph: what is refused and in which words, JSON round trips, and sizes that need more than 64 bits."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from strategies import graphs

from solvers.errors import InvalidGraph, SolverError
from solvers.graph import Graph, Node, chain, training_chain
from solvers.schedule import Schedule
from solvers.simulate import simulate


@given(graphs())
def test_json_round_trip(graph: Graph) -> None:
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph


@given(graphs())
def test_structural_hash_ignores_names_only(graph: Graph) -> None:
    renamed = Graph(tuple(replace(node, name="x") for node in graph.nodes), graph.outputs)
    heavier = Graph((replace(graph.nodes[0], size=graph.nodes[0].size + 1), *graph.nodes[1:]), graph.outputs)
    assert renamed.structural_hash == graph.structural_hash
    assert heavier.structural_hash != graph.structural_hash


@given(graphs())
def test_readers_and_parts_mirror_deps(graph: Graph) -> None:
    for u in range(len(graph)):
        assert graph.readers[u] == tuple(v for v in range(len(graph)) if u in graph.nodes[v].deps)
    for v in graph.steps:
        assert graph.written(v) == tuple(w for w in range(len(graph)) if w == v or graph.nodes[w].part_of == v)
        assert all(graph.step_of(w) == v for w in graph.written(v))


def test_saved_and_loaded(tmp_path) -> None:
    graph = training_chain(4)
    graph.save(tmp_path / "graph.json")
    assert Graph.load(tmp_path / "graph.json") == graph


def test_plain_form_has_its_last_node_as_output() -> None:
    rows = [
        {"name": "a", "cost": 1, "size": 2.0, "deps": []},
        {"name": "b", "cost": 1, "size": 3, "deps": [0], "backward": True},
    ]
    graph = Graph.from_json({"name": "small", "nodes": rows})
    assert graph.outputs == (1,)
    assert graph.nodes[0].size == 2
    assert graph.nodes[1].backward


def test_public_graphs_load(shared) -> None:
    paths = sorted((shared / "graphs").glob("*.json"))
    assert paths
    for path in paths:
        graph = Graph.load(path)
        assert graph.outputs == (len(graph) - 1,)


@pytest.mark.parametrize(
    ("nodes", "outputs", "message"),
    [
        ((), (), "at least one node"),
        ((Node("a", 1, 1, (1,)), Node("b", 1, 1, (0,))), (1,), r"node 0 \('a'\) reads node 1, which comes later.*cycle"),
        ((Node("a", 1, 1, (0,)),), (0,), "comes later or is itself"),
        ((Node("a", 1, 1), Node("b", 1, 1, (7,))), (1,), r"node 1 \('b'\) reads node 7, which does not exist"),
        ((Node("a", 1, 1), Node("b", 1, 1, (-1,))), (1,), "reads node -1, which does not exist"),
        ((Node("a", -1, 1),), (0,), r"node 0 \('a'\) has cost -1"),
        ((Node("a", math.nan, 1),), (0,), "has cost nan"),
        ((Node("a", math.inf, 1),), (0,), "has cost inf"),
        ((Node("a", 1, -1),), (0,), "has size -1"),
        ((Node("a", 1, 0.5),), (0,), "has size 0.5"),  # type: ignore[arg-type]
        ((Node("a", 1, True),), (0,), "has size True"),
        ((Node("a", 1, 1, workspace=-2),), (0,), "has workspace -2"),
        ((Node("a", 1, 1),), (1,), "output 1 is not a node"),
        ((Node("a", 1, 1), Node("b", 0, 1, part_of=1)), (1,), "is part of node 1"),
        ((Node("a", 1, 1), Node("b", 0, 1, part_of=0), Node("c", 0, 1, part_of=1)), (1,), "is part of node 1"),
        ((Node("a", 1, 1), Node("b", 2, 1, part_of=0)), (1,), "dependencies, cost and workspace belong to that node"),
    ],
)
def test_bad_graphs_are_refused(nodes: tuple[Node, ...], outputs: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidGraph, match=message) as caught:
        Graph(nodes, outputs)
    assert isinstance(caught.value, SolverError)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], 'an object with a list "nodes"'),
        ({"nodes": 3}, 'an object with a list "nodes"'),
        ({"nodes": [3]}, "node 0 is 3"),
        ({"nodes": [{"cost": 1, "deps": []}]}, "node 0 lacks size"),
        ({"nodes": [{"cost": 1, "size": 1, "deps": 0}]}, "node 0 has deps 0"),
        ({"nodes": [{"cost": 1, "size": 1, "deps": [], "colour": 1}]}, r"unknown fields \['colour'\]"),
        ({"nodes": [{"cost": 1, "size": 1, "deps": [], "backward": 1}]}, "has backward 1: true or false"),
        ({"nodes": [{"cost": "1", "size": 1, "deps": []}]}, "has cost '1'"),
        ({"nodes": [{"cost": 1, "size": 1.5, "deps": []}]}, "has size 1.5"),
        ({"nodes": [{"cost": 1, "size": 1, "deps": []}], "outputs": "0"}, '"outputs" is a list'),
    ],
)
def test_bad_json_is_refused(data: object, message: str) -> None:
    with pytest.raises(InvalidGraph, match=message):
        Graph.from_json(data)


def test_unreadable_files_are_named(tmp_path) -> None:
    with pytest.raises(InvalidGraph, match=r"cannot read .*missing.json"):
        Graph.load(tmp_path / "missing.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InvalidGraph, match=r"bad.json is not a JSON file"):
        Graph.load(tmp_path / "bad.json")
    (tmp_path / "cycle.json").write_text('{"nodes": [{"name": "a", "cost": 1, "size": 1, "deps": [0]}]}')
    with pytest.raises(InvalidGraph, match=r"cycle.json: node 0"):
        Graph.load(tmp_path / "cycle.json")


def test_huge_sizes_do_not_overflow() -> None:
    graph = chain([1, 1, 1], [2**80, 2**80 + 1, 3])
    assert simulate(graph, Schedule.from_order(graph, graph.steps)).peak == 2**81 + 1


def test_zero_sizes_and_costs() -> None:
    graph = chain([0, 0], [0, 0])
    result = simulate(graph, Schedule.from_order(graph, graph.steps))
    assert (result.peak, result.cost, result.peak_at) == (0, 0, 0)


def test_a_line_of_10000_nodes() -> None:
    graph = chain([1] * 10_000, [1] * 10_000)
    assert Graph.from_json(graph.to_json()) == graph
    assert simulate(graph, Schedule.from_order(graph, graph.steps)).peak == 2
