"""The lightest set of kept values, against all sets."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from solvers.vertex_cut import vertex_cut

N = 6


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, list[int]], set[int], set[int]]:
    sizes = {v: draw(st.integers(0, 9)) for v in range(N)}
    inputs = {v: draw(st.lists(st.integers(0, v - 1), unique=True, max_size=3)) for v in range(1, N)}
    sources = draw(st.sets(st.integers(0, N - 1), max_size=N)) | {0}
    return sizes, inputs, sources, draw(st.sets(st.integers(0, N - 1)))


def suffices(
    kept: set[int] | frozenset[int], inputs: dict[int, list[int]], sources: set[int], needed: set[int] | frozenset[int]
) -> bool:
    there = set(kept)
    for v in range(N):
        if v not in sources and there.issuperset(inputs.get(v, ())):
            there.add(v)
    return there >= needed


@given(problems())
def test_no_lighter_set_suffices(problem: tuple[dict[int, int], dict[int, list[int]], set[int], set[int]]):
    sizes, inputs, sources, needed = problem
    found = vertex_cut(sizes, inputs, sources, needed)
    assert suffices(found, inputs, sources, needed)
    least = min(
        sum(sizes[v] for v in kept)
        for k in range(N + 1)
        for kept in itertools.combinations(range(N), k)
        if suffices(set(kept), inputs, sources, needed)
    )
    assert sum(sizes[v] for v in found) == least
