"""The cheapest nest: closed form against exhaustive search, revolve and unrolled graphs."""

from __future__ import annotations

import heapq
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import revolve
from solvers.brute_force import brute_force
from solvers.errors import InfeasibleBudget
from solvers.graph import Graph, Node
from solvers.nest import Nest, binomial, check
from solvers.nest_search import Body, Choice, Loop, cheapest, fewest_steps, frontier, smallest
from solvers.schedule import Schedule
from solvers.simulate import simulate


def fewest_by_search(length: int, slots: int, block: int) -> int:
    """Fewest forward steps of any backward pass with so many slots and blocks of at most so many steps, by Dijkstra.

    A state is the step up to which all is reversed, the carries in slots, and the carry at hand. Nothing is assumed about
    the shape of the pass: any slot may be read, written over or dropped at any time.
    """
    queue: list[tuple[int, int, tuple[int, ...], int]] = []
    for count in range(1, slots + 1):
        queue.extend((0, length, held, -1) for held in combinations(range(length), count) if 0 in held)
    done: set[tuple[int, tuple[int, ...], int]] = set()
    heapq.heapify(queue)
    while queue:
        cost, end, held, at = heapq.heappop(queue)
        if end == 0:
            return cost
        if (end, held, at) in done:
            continue
        done.add((end, held, at))
        for start in held:
            heapq.heappush(queue, (cost, end, held, start))
        if 0 <= at < end:
            heapq.heappush(queue, (cost + 1, end, held, at + 1))
            if end - at <= block:
                heapq.heappush(queue, (cost + end - at, at, held, -1))
            if at not in held:
                kept = [held] if len(held) < slots else [held[:i] + held[i + 1 :] for i in range(len(held))]
                for rest in kept:
                    heapq.heappush(queue, (cost, end, tuple(sorted((*rest, at))), at))
    raise AssertionError("some pass exists")


@pytest.mark.parametrize("length", range(1, 9))
def test_no_backward_pass_recomputes_less(length):
    for slots in (1, 2, 3):
        for block in (1, 2, 3):
            nest = binomial(length, slots, block=block)
            found = fewest_by_search(length, slots, block)
            assert found == fewest_steps(length, slots, block) == nest.recomputed_steps()


@given(st.integers(1, 400), st.integers(1, 12), st.integers(1, 40), st.booleans())
def test_the_closed_form_is_attained(length, slots, block, direct):
    nest = binomial(length, slots, block=block, direct=direct)
    check(nest)
    assert nest.slots <= slots
    assert nest.longest <= block
    assert nest.recomputed_steps() == fewest_steps(length, slots, block, direct=direct)
    if block == 1 and not direct:
        assert nest.recomputed_steps() == revolve.cost(length + 1, min(slots, length))


BODIES = st.lists(
    st.builds(
        lambda residuals, extra, workspace: Body(residual_bytes=residuals, extra_cost=extra, workspace=workspace),
        st.integers(0, 9),
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=3,
)
LOOPS = st.builds(
    lambda length, carry, bodies, fixed: Loop(
        length=length, carry_bytes=carry, step_cost=1.0, bodies=tuple(bodies), fixed_bytes=fixed
    ),
    st.integers(1, 40),
    st.integers(1, 7),
    BODIES,
    st.integers(0, 9),
)


def cheapest_by_enumeration(loop: Loop, budget: int, direct: bool) -> tuple[float, int] | None:
    """Extra cost and bytes of the best of every body, number of slots and block length."""
    found: list[tuple[float, int]] = []
    for body in loop.bodies:
        base, extra = loop.fixed_bytes + body.workspace, body.extra_cost * loop.length
        found.append((extra, base + loop.length * body.residual_bytes))
        for slots in range(1, loop.length + 1):
            for block in range(1, loop.length + 1):
                steps = fewest_steps(loop.length, slots, block, direct=direct)
                found.append((steps + extra, base + slots * loop.carry_bytes + block * body.residual_bytes))
    return min(((cost, size) for cost, size in found if size <= budget), default=None)


@given(LOOPS, st.integers(0, 120), st.booleans())
def test_cheapest_is_the_best_of_all(loop, budget, direct):
    expected = cheapest_by_enumeration(loop, budget, direct)
    if expected is None:
        with pytest.raises(InfeasibleBudget) as caught:
            cheapest(loop, budget, direct=direct)
        assert caught.value.proven
        assert caught.value.minimum == smallest(loop)
        cheapest(loop, caught.value.minimum, direct=direct)
        return
    choice = cheapest(loop, budget, direct=direct)
    assert choice.extra_cost == expected[0]
    assert choice.peak_bytes <= budget
    if not direct and choice.nest is not None and choice.nest.recomputed_steps() == loop.length:
        assert choice.peak_bytes == expected[1]  # at one extra forward pass, the smallest of all
    if choice.nest is not None:
        assert_agrees(loop, choice)


def assert_agrees(loop: Loop, choice: Choice) -> None:
    """A choice says of its nest what the nest says of itself."""
    nest, body = choice.nest, loop.bodies[choice.body]
    assert nest is not None
    check(nest)
    assert nest.recomputed_steps() * loop.step_cost + body.extra_cost * loop.length == choice.extra_cost
    held = nest.slots * loop.carry_bytes + nest.longest * body.residual_bytes
    assert held + body.workspace + loop.fixed_bytes <= choice.peak_bytes


@given(LOOPS, st.booleans())
def test_a_frontier_trades_bytes_for_cost(loop, direct):
    found = frontier(loop, direct=direct)
    assert found[-1].peak_bytes == smallest(loop) or found[-1].extra_cost == found[0].extra_cost
    assert found[0].extra_cost == min(body.extra_cost for body in loop.bodies) * loop.length
    for cheaper, smaller in pairwise(found):
        assert smaller.peak_bytes < cheaper.peak_bytes
        assert smaller.extra_cost > cheaper.extra_cost


def unrolled(length: int, carry: int, residuals: int) -> Graph:
    """A loop without the loop: each step writes its carry and its residuals, which alone its backward step reads."""
    nodes: list[Node] = []
    for t in range(length):
        nodes.append(Node(f"h{t}", 1, carry, (2 * t - 2,) if t else ()))
        nodes.append(Node(f"r{t}", 0, residuals, part_of=2 * t))
    for t in reversed(range(length)):
        above = len(nodes) - 1 if t < length - 1 else 2 * t
        nodes.append(Node(f"b{t}", 1, 0, (2 * t + 1, above), backward=True, external=True))
    return Graph(tuple(nodes), (len(nodes) - 1,))


def order_of(nest: Nest) -> list[int]:
    """The order in which a nest runs the unrolled graph."""
    starts = [sum(nest.blocks[:b]) for b in range(len(nest.blocks) + 1)]
    order = [2 * t for t in range(nest.length)]

    def backward(block: int) -> None:
        order.extend(3 * nest.length - 1 - t for t in reversed(range(starts[block], starts[block + 1])))

    if nest.direct:
        backward(len(nest.blocks) - 1)
    for replay in nest.backward:
        order.extend(2 * t for t in range(starts[replay.start], starts[replay.block + 1]))
        backward(replay.block)
    return order


@pytest.mark.parametrize("length", range(1, 8))
def test_on_unrolled_loops(length):
    for carry, residuals in ((1, 1), (1, 3), (2, 1), (1, 20)):
        graph = unrolled(length, carry, residuals)
        for slots in (1, 2, 3):
            for block in (1, 2, 4):
                nest = binomial(length, slots, block=block, direct=True)
                result = simulate(graph, Schedule.from_order(graph, order_of(nest)))
                assert result.cost == 2 * length + nest.recomputed_steps()
                # Two carries beside the slots: what a step reads and what it writes; and one step's residuals on the way.
                assert result.peak <= nest.slots * carry + nest.longest * residuals + 2 * carry + residuals
                if length <= 5:
                    assert brute_force(graph, result.peak).cost <= result.cost


def test_long_loops_are_planned_at_once():
    bodies = (Body(residual_bytes=15_000_000), Body(residual_bytes=4_000_000, extra_cost=0.5, workspace=11_000_000))
    for length in (4096, 65536):
        loop = Loop(length=length, carry_bytes=2_000_000, step_cost=1.0, bodies=bodies, fixed_bytes=118_000_000)
        knee = cheapest(loop, 118_000_000 + 12_000_000 * round(length**0.5))
        assert knee.extra_cost == length
        assert knee.nest is not None
        assert abs(knee.nest.slots / (length * 7.5) ** 0.5 - 1) < 0.1  # slots and blocks take equal bytes
        log = cheapest(loop, 118_000_000 + 60_000_000)
        assert log.extra_cost < 12 * length


def test_arguments_are_checked():
    for bad in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            fewest_steps(*bad)
