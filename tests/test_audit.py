"""The audit's answers: valid by the schema, right where they can be worked out by hand, and told on one page."""

from __future__ import annotations

import doctest
import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import remat_lab as rl
from remat_lab.audit import SCHEMA
from remat_lab.kept import kept_bytes, kept_values
from remat_lab.units import size
from solvers.graph import Graph, Node
from solvers.schedule import Schedule

W = [jax.random.normal(jax.random.key(i), (16, 16)) / 4 for i in range(5)]
X = jax.random.normal(jax.random.key(9), (64, 16))


def loss(ws, x):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    best, _ = jax.lax.top_k(x, 2)
    return jnp.sum(x**2) + jnp.sum(best)


@pytest.fixture(scope="module")
def plan() -> rl.Plan:
    return rl.plan(loss, W, X, budget=0.7, solver="greedy", check="planned")


@pytest.fixture(scope="module")
def audit(plan) -> rl.Audit:
    return rl.audit(loss, W, X, plan=plan, reserved=optax.adam(1e-3))


def problems(value: Any, schema: Any, root: Any, where: str = "audit") -> list[str]:
    """What contradicts a JSON schema, for the keywords that ours uses."""
    if "$ref" in schema:
        return problems(value, root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root, where)
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    kinds["null"] = type(None)
    unknown = set(schema) - {"$schema", "$defs", "title", "description", "type", "const", "enum", "minimum", "minItems"}
    assert unknown <= {"properties", "required", "additionalProperties", "items"}
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    found = []
    if wanted and not any(isinstance(value, kinds[k]) and (k == "boolean" or not isinstance(value, bool)) for k in wanted):
        found.append(f"{where} is {value!r}, not {wanted}")
    if ("const" in schema and value != schema["const"]) or ("enum" in schema and value not in schema["enum"]):
        found.append(f"{where} is {value!r}")
    if isinstance(value, int | float) and value < schema.get("minimum", value):
        found.append(f"{where} is {value}, too small")
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        found += [f"{where} lacks {key}" for key in schema.get("required", ()) if key not in value]
        if schema.get("additionalProperties") is False:
            found += [f"{where} has {key}" for key in value if key not in fields]
        for key, item in value.items():
            found += problems(item, fields.get(key, {}), root, f"{where}.{key}")
    if isinstance(value, list):
        found += [f"{where} is empty"] if len(value) < schema.get("minItems", 0) else []
        for i, item in enumerate(value):
            found += problems(item, schema.get("items", {}), root, f"{where}[{i}]")
    return found


def test_the_answers_are_valid_by_the_schema_and_changes_are_not(audit):
    schema, data = json.loads(SCHEMA.read_text()), json.loads(json.dumps(audit.to_json()))
    assert problems(data, schema, schema) == []
    assert problems({**data, "version": 2}, schema, schema)
    assert problems({**data, "peaks": {**data["peaks"], "planned_bytes": -1}}, schema, schema)
    assert problems({key: value for key, value in data.items() if key != "price"}, schema, schema)


def test_classes_of_memory_are_those_of_the_step(audit):
    found = {row["name"]: row["bytes"] for row in audit.data["memory"]}
    parameters = sum(w.nbytes for w in W)
    assert found["parameters"] == found["gradients"] == parameters
    assert found["other arguments"] == X.nbytes
    assert found["optimizer state"] == 2 * parameters + 4  # two moments and a count
    temporaries = found["retained activations"] + found["workspace and transient values"]
    assert temporaries == audit.data["peaks"]["compiled_bytes"]
    assert found["retained activations"] >= X.nbytes


def test_what_is_kept_is_the_same_in_the_audit_and_in_the_table_of_decisions(plan, audit):
    found = {row["name"]: row["bytes"] for row in audit.data["memory"]}
    kept = [row for row in plan.explain() if row.decision == "kept"]
    assert found["retained activations"] == kept_bytes(plan.graph, plan.schedule)
    assert 0 < found["retained activations"] <= sum(row.bytes for row in kept) == plan.explain().kept_bytes


def test_values_are_kept_whenever_the_backward_pass_begins():
    nodes = (
        Node("a", 1, 4),
        Node("b", 1, 2, (0,)),
        Node("c", 1, 8, (1,)),
        Node("early", 1, 1, (0,), backward=True),
        Node("db", 1, 1, (2, 1), backward=True),
        Node("da", 1, 1, (4, 0, 3), backward=True),
    )
    graph = Graph(nodes, (5,))
    for order in ((0, 1, 2, 3, 4, 5), (0, 3, 1, 2, 4, 5)):
        schedule = Schedule.from_order(graph, order)
        assert kept_values(graph, schedule.recomputed) == {0, 1, 2}
        assert kept_bytes(graph, schedule) == 14
    again = Schedule.from_order(graph, (0, 1, 2, 1, 4, 0, 3, 5))
    assert kept_values(graph, again.recomputed) == {2}
    assert kept_bytes(graph, again) == 8


def test_values_are_there_from_each_computation_to_its_last_reader(plan, audit):
    rows = {tuple(map(tuple, row["spans"])): row for row in audit.data["lifetimes"]}
    assert any(len(spans) > 1 for spans in rows)
    for spans, row in rows.items():
        assert row["times_computed"] == len(spans)
        assert all(first <= last for first, last in spans)
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans))
        assert spans[-1][1] <= len(plan.schedule.order)


def test_what_must_not_run_again_is_named_with_its_line(audit):
    (row,) = (row for row in audit.data["replay"]["forbidden"] if row["equation"] == "top_k")
    assert "test_audit.py" in row["source"]
    assert {row["name"] for row in audit.data["replay"]["classes"]} == {"pure", "discrete"}
    assert sum(row["recomputed"] for row in audit.data["replay"]["classes"] if row["name"] == "discrete") == 0


def test_the_price_is_that_of_the_schedule(audit):
    price = audit.data["price"]
    assert price["recomputed_steps"] > 0
    assert price["extra_flops_ratio"] > 0
    assert price["critical_path_ratio"] >= 1
    assert sum(row["cost_ratio"] for row in price["dearest"]) == pytest.approx(price["extra_cost_ratio"], rel=1e-6)


def test_results_are_compared_under_a_seed_or_not_at_all(audit):
    equal = audit.data["equivalence"]
    assert equal["outputs"] == 1 + len(W)
    assert equal["bitwise"] or equal["largest_relative"] < 1e-4
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (W, X))
    unrun = rl.audit(loss, *shapes, run=False)
    assert unrun.data["equivalence"] is None
    assert "Not checked" in str(unrun)
    assert unrun.data["price"]["recomputed_steps"] == 0


def test_the_page_has_seven_sections_and_fits_a_screen_or_two(audit, tmp_path):
    text, markdown = str(audit), audit.markdown()
    peaks = audit.data["peaks"]
    assert text.splitlines()[1].startswith(f"{size(peaks['compiled_bytes'])} of temporaries where plain JAX takes")
    for number in range(1, 8):
        assert f"\n{number}. " in text
        assert f"\n## {number}. " in markdown
    assert text.count("\n") < 80
    assert max(map(len, text.splitlines())) <= 160
    for suffix in (".md", ".json", ".txt"):
        audit.save(tmp_path / f"page{suffix}")
    assert json.loads((tmp_path / "page.json").read_text()) == json.loads(json.dumps(audit.data))
    assert (tmp_path / "page.md").read_text().startswith("# Audit of loss")


def test_the_example_of_the_documentation_runs(checkout):
    failed, tried = doctest.testfile(str(checkout / "docs" / "audit.md"), module_relative=False)
    assert tried > 5
    assert failed == 0
