"""`solve`: what it accepts, what it refuses and how, and that every solver in the registry keeps its promises."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import training_graphs

import solvers
from solvers.brute_force import brute_force
from solvers.errors import InfeasibleBudget, InvalidBudget, InvalidSchedule, SolverError, UnsupportedGraph
from solvers.graph import Graph, training_chain
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solve import REGISTRY, available, check_budget, find_solver, solve

CHEAP = ("keep_all", "sqrt", "chen", "recursive")


class Index:
    """An integer of another library."""

    def __index__(self) -> int:
        return 12


@pytest.mark.parametrize(("budget", "bytes_"), [(None, None), (1, 1), (2**80, 2**80), (Index(), 12)])
def test_budgets(budget: object, bytes_: int | None) -> None:
    assert check_budget(budget) == bytes_


@pytest.mark.parametrize("budget", [0, -5, True, False, 0.5, 3.0, float("nan"), float("inf"), "3 GB of", [1]])
def test_bad_budgets_are_refused(budget: object) -> None:
    with pytest.raises(InvalidBudget, match=r"the budget is .*a whole number of bytes above zero") as caught:
        solve(training_chain(4), budget)  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)


def test_unknown_solvers_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no solver 'sqrtn': choose one of auto, keep_all, sqrt, chen, recursive") as caught:
        solve(training_chain(4), 10, "sqrtn")
    assert all(name in str(caught.value) for name in available())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"time_limit": 0}, "time_limit is 0"),
        ({"time_limit": float("nan")}, "time_limit is nan"),
        ({"work_limit": -1.0}, "work_limit is -1.0"),
        ({"workers": 0}, "workers is 0"),
        ({"workers": True}, "workers is True"),
    ],
)
def test_options_out_of_range_are_refused(option: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(training_chain(4), 10, "keep_all", **option)  # type: ignore[arg-type]


def test_invalid_starts_are_refused() -> None:
    with pytest.raises(InvalidSchedule, match="reads node 0"):
        solve(training_chain(4), 10, "keep_all", starts=[[1, 0]])


def test_names_of_the_registry() -> None:
    assert set(available()) <= set(REGISTRY)
    assert {"auto", *CHEAP, "brute_force"} <= set(available())
    for where in REGISTRY.values():
        module, _, function = where.partition(":")
        assert module.startswith("solvers.")
        assert function.isidentifier()


@pytest.mark.parametrize("name", CHEAP)
def test_names_reach_their_solver(name: str) -> None:
    assert solve(training_chain(16), 17, name).solver == name


@given(training_graphs(max_layers=4), st.floats(0, 1))
@settings(max_examples=25)
def test_auto_is_never_worse_than_a_cheap_strategy(graph: Graph, fraction: float) -> None:
    full = simulate(graph, Schedule.from_order(graph, graph.steps)).peak
    budget = max(1, int(full * (0.5 + fraction / 2)))
    costs = []
    for name in CHEAP:
        try:
            costs.append(solve(graph, budget, name).cost)
        except (InfeasibleBudget, UnsupportedGraph):
            continue
    solution = _attempt(graph, budget)
    if isinstance(solution, InfeasibleBudget):
        assert not costs
        assert solution.lower_bound <= solution.minimum
        if solution.proven:
            with pytest.raises(InfeasibleBudget):
                brute_force(graph, budget, copies=2)
        return
    assert solution.peak <= budget
    assert solution.cost <= min(costs, default=solution.cost)
    assert solution.lower_bound <= solution.cost


def _attempt(graph: Graph, budget: int) -> solvers.Solution | InfeasibleBudget:
    try:
        return solve(graph, budget, "auto", time_limit=20, workers=1)
    except InfeasibleBudget as error:
        return error


def test_an_impossible_budget_names_the_node() -> None:
    graph = training_chain(16)
    for name in ("keep_all", "sqrt", "chen", "recursive"):
        with pytest.raises(InfeasibleBudget) as caught:
            solve(graph, 2, name)
        error = caught.value
        assert isinstance(error, SolverError)
        assert error.proven
        assert error.lower_bound == 4 <= error.minimum
        assert error.name == graph.nodes[error.bottleneck].name


@pytest.mark.parametrize("name", available())
def test_every_name_leads_to_a_solver(name: str) -> None:
    assert callable(find_solver(name))


def test_public_names_are_what_they_say() -> None:
    assert callable(solvers.solve)
    assert callable(solvers.simulate)
    solution = solvers.solve(solvers.training_chain(16), 8, "sqrt")
    assert isinstance(solution, solvers.Solution)


def test_importing_the_solvers_imports_neither_jax_nor_a_search_library() -> None:
    code = "import solvers, sys; solvers.solve(solvers.training_chain(9), 6, 'sqrt'); print(sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'solvers.chen'" in modules
    for name in ("jax", "numpy", "ortools", "remat_lab"):
        assert f"'{name}'" not in modules
