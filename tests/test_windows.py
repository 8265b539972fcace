"""Polishing a few blocks at a time: never worse, within the budget, and what is found before an interrupt counts."""

from __future__ import annotations

import random

import pytest
from deep_graphs import residual_network

import solvers.hierarchical as hierarchical
import solvers.windows as windows
from solvers.hierarchical import compose
from solvers.orders import cost_of, peak_of
from solvers.solution import Options, Status
from solvers.solve import solve
from solvers.windows import search_windows

GRAPH = residual_network(14)
BUDGET = int(0.4 * peak_of(GRAPH, GRAPH.steps))


@pytest.fixture(scope="module")
def clumsy():
    """An order that fits, found for less memory than there is."""
    return compose(GRAPH, int(0.8 * BUDGET), Options()).schedule.order


def test_orders_fit_and_become_cheaper(clumsy, monkeypatch):
    monkeypatch.setattr(windows, "_WORK", 0.05)
    found = list(search_windows(GRAPH, clumsy, BUDGET, rng=random.Random(0), rounds=4))
    assert found
    costs = [cost_of(GRAPH, order) for order in (clumsy, *found)]
    assert costs == sorted(set(costs), reverse=True)
    for order in found:
        assert peak_of(GRAPH, order) <= BUDGET
        assert set(order) == set(GRAPH.steps)


def test_it_ends_when_told_so_or_without_anything_to_do(clumsy):
    asked = []
    assert not list(
        search_windows(GRAPH, clumsy, BUDGET, rng=random.Random(0), done=lambda: asked.append(1) or len(asked) == 1)
    )
    assert not list(search_windows(GRAPH, GRAPH.steps, peak_of(GRAPH, GRAPH.steps), rng=random.Random(0)))


def test_an_interrupt_of_the_exact_model_comes_through_after_what_it_found(clumsy, monkeypatch):
    def interrupted(excerpt, budget, deadline):
        return excerpt.order, Status.INTERRUPTED

    monkeypatch.setattr(windows, "_exact", interrupted)
    found = search_windows(GRAPH, clumsy, BUDGET, rng=random.Random(0))
    with pytest.raises(KeyboardInterrupt):
        list(found)


def test_hierarchical_returns_what_it_had_when_polishing_is_interrupted(monkeypatch):
    def stopped(graph, order, budget, **limits):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(hierarchical, "_EXACT", 0)
    monkeypatch.setattr(hierarchical, "search_windows", stopped)
    found = solve(GRAPH, BUDGET, "hierarchical", work_limit=0.01, workers=1)
    assert found.status is Status.INTERRUPTED
    assert found.peak <= BUDGET


def test_hierarchical_returns_what_it_had_when_a_part_is_interrupted(monkeypatch):
    real = hierarchical.run_here

    def part(name, graph, budget, options):
        answer = real(name, graph, budget, options)
        return type(answer)(answer.order, answer.bound, answer.scope, Status.INTERRUPTED.value)

    monkeypatch.setattr(hierarchical, "run_here", part)
    found = solve(residual_network(4), int(0.6 * peak_of(residual_network(4), residual_network(4).steps)), "hierarchical",
                  work_limit=0.01, workers=1)  # fmt: skip
    assert found.status is Status.INTERRUPTED


def test_out_of_time_within_the_tables_falls_back(monkeypatch):
    """The time limit is over while the dynamic program runs: greedy eviction's plan is the answer."""

    class Late(hierarchical.Composer):
        def __init__(self, sequence, memory, check):
            raise hierarchical._OutOfTime

    monkeypatch.setattr(hierarchical, "Composer", Late)
    found = solve(GRAPH, BUDGET, "hierarchical", work_limit=0.01, workers=1)
    assert "time limit" in found.notes["blocks"]
    assert found.peak <= BUDGET


def test_time_that_is_over_after_the_tables_still_leaves_a_schedule(monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock, calls = Clock(), []

    class Slow(hierarchical.Composer):
        def __init__(self, sequence, memory, check):
            super().__init__(sequence, memory, check)
            clock.now = 1e6

    def unroll(sequence, items):
        calls.append(items)
        return list(GRAPH.steps) if len(calls) == 1 else real(sequence, items)

    real = hierarchical.unroll
    monkeypatch.setattr(hierarchical, "Composer", Slow)
    monkeypatch.setattr(hierarchical, "unroll", unroll)
    monkeypatch.setattr(hierarchical, "repair", lambda *given, **limits: None)
    monkeypatch.setattr(hierarchical, "time", clock)
    found = solve(GRAPH, BUDGET, "hierarchical", time_limit=60.0, workers=1)
    assert found.status is Status.TIME_LIMIT
    assert found.peak <= BUDGET
    assert len(calls) > 1


def test_an_interrupt_while_tables_or_windows_are_worked_on_is_heard(clumsy, monkeypatch):
    monkeypatch.setattr(hierarchical, "_TELL_SECONDS", -1.0)  # at every chance
    heard = []

    def stop_in_tables(progress):
        heard.append(progress)
        if len(heard) == 9:
            raise KeyboardInterrupt

    found = solve(GRAPH, BUDGET, "hierarchical", starts=[clumsy], progress=stop_in_tables, work_limit=0.01, workers=1)
    assert found.status is Status.INTERRUPTED
    assert len(heard) == 9
    assert "blocks" in found.notes
    assert "tables" not in found.notes
    assert found.cost <= cost_of(GRAPH, clumsy)
