"""The states and moves that the exhaustive search goes through: which steps ran, and which values are live."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from solvers.graph import Graph


@dataclass(frozen=True, slots=True)
class State:
    """Steps done at least once, the least step the stage may still recompute, live values, and extra runs per step."""

    done: int
    at: int
    live: int
    runs: int


class StateSpace:
    """States and moves. Sets of steps and of values are bit masks. `brute_force` says which schedules these are."""

    def __init__(self, graph: Graph, given: bool, copies: int | None):
        self.graph, self.given, self.copies = graph, given, copies
        self.steps = graph.steps
        index = {v: k for k, v in enumerate(self.steps)}
        nodes = [graph.nodes[v] for v in self.steps]
        self.cost = [node.cost for node in nodes]
        self.workspace = [node.workspace for node in nodes]
        self.reads = [_mask(node.deps) for node in nodes]
        self.writes = [_mask(graph.written(v)) for v in self.steps]
        self.again = [graph.may_recompute(v) for v in self.steps]
        self.writer = [index[graph.step_of(v)] for v in range(len(graph))]
        self.outputs = _mask(graph.outputs)
        self.everything = (1 << len(self.steps)) - 1
        self.replayable_reads = _union(r for r, again in zip(self.reads, self.again, strict=True) if again)
        self.single = _union(w for w, again in zip(self.writes, self.again, strict=True) if not again)
        self.base = copies or 1  # `State.runs` is a number in this base, with one digit for each step
        self.unit = [int(self.base**k) for k in range(len(self.steps))]
        self._charges: dict[int, int] = {0: 0}

    start = State(0, 0, 0, 0)

    def charge(self, values: int) -> int:
        """Budgeted bytes of a set of values."""
        if values not in self._charges:
            lowest = values & -values
            self._charges[values] = self.charge(values ^ lowest) + self.graph.nodes[lowest.bit_length() - 1].charge
        return self._charges[values]

    def pending_reads(self, done: int) -> int:
        """Values that some step still to be done for the first time reads, and the outputs."""
        reads = self.outputs
        for k in range(len(self.steps)):
            if not done >> k & 1:
                reads |= self.reads[k]
        return reads

    def debt(self, state: State) -> float:
        """Least further cost of a state: first runs, and every missing value that must be made again; infinite if it cannot.

        A missing value that a step must read needs one more run of its own step, and so do that step's own missing reads.
        """
        total = math.fsum(c for k, c in enumerate(self.cost) if not state.done >> k & 1)
        made = _union(w for k, w in enumerate(self.writes) if state.done >> k & 1)
        missing = self.pending_reads(state.done) & made & ~state.live
        counted = 0
        while missing:
            k = self.writer[(missing & -missing).bit_length() - 1]
            if not self.again[k] or (self.copies is not None and self._extra(state.runs, k) >= self.copies - 1):
                return math.inf
            total += self.cost[k]
            counted |= self.writes[k]
            missing = (missing | self.reads[k] & made & ~state.live) & ~counted
        return total

    def moves(self, state: State) -> Iterator[tuple[int, int, list[State]]]:
        """Each step that can run next: its position, the bytes live while it runs, and the states it may lead to."""
        stage = state.done.bit_count()
        for k in range(len(self.steps)):
            first = not state.done >> k & 1
            if self.reads[k] & ~state.live or self.writes[k] & state.live:
                continue
            if self.given and not (k == stage if first else state.at <= k < stage):
                continue
            if self.given and state.done == self.everything:
                continue
            if not first and not self._may_run_again(state, k):
                continue
            live = state.live | self.writes[k]
            done = state.done | 1 << k
            at = k + 1 if self.given and not first else 0
            runs = state.runs if first or self.copies is None else state.runs + self.unit[k]
            needed = self.pending_reads(done)
            dead = ~(needed | self.replayable_reads)
            choice = (self.reads[k] | self.writes[k]) & live & ~dead & ~(self.single & needed)
            after = [State(done, at, live & ~dead & ~drop, runs) for drop in _subsets(choice)]
            yield k, self.charge(live) + self.workspace[k], after

    def finished(self, state: State) -> bool:
        """Whether every step ran and the outputs are live."""
        return state.done == self.everything and not self.outputs & ~state.live

    def _may_run_again(self, state: State, k: int) -> bool:
        return self.again[k] and (self.copies is None or self._extra(state.runs, k) < self.copies - 1)

    def _extra(self, runs: int, k: int) -> int:
        return runs // self.unit[k] % self.base


def _mask(members: tuple[int, ...]) -> int:
    return _union(1 << v for v in members)


def _union(masks: Iterator[int] | tuple[int, ...]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result


def _subsets(mask: int) -> Iterator[int]:
    subset = mask
    while True:
        yield subset
        if not subset:
            return
        subset = (subset - 1) & mask
