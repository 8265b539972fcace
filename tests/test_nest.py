"""Nests of loops: every constructor gives a sound nest, with the slots and recomputed steps that it announces."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import revolve
from solvers.errors import InvalidNest
from solvers.nest import Nest, Replay, binomial, check, halving, keep_all, levels, two_level, uneven

LENGTHS = range(1, 71)
OPTIONS = [{"keeps": keeps, "direct": direct} for keeps in (True, False) for direct in (True, False)]
MAKERS = {
    "keep_all": keep_all,
    "two_level": two_level,
    "two_level of 5": lambda n, **kw: two_level(n, 5, **kw),
    "three levels": lambda n, **kw: levels(n, 3, **kw),
    "four levels": lambda n, **kw: levels(n, 4, **kw),
    "halving": halving,
    "halving of 3": lambda n, **kw: halving(n, block=3, **kw),
    "one slot": lambda n, **kw: binomial(n, 1, **kw),
    "three slots": lambda n, **kw: binomial(n, 3, **kw),
    "four slots, blocks of 3": lambda n, **kw: binomial(n, 4, block=3, **kw),
}


def run(nest: Nest) -> tuple[int, int]:
    """Carries held at most, and forward steps of the backward pass, by walking through the steps one by one."""
    starts = [sum(nest.blocks[:b]) for b in range(len(nest.blocks) + 1)]
    slots: dict[int, int] = {slot: starts[b] for b, slot in enumerate(nest.forward) if slot is not None}
    held, steps, reversed_steps = len(slots), 0, list(range(nest.length))
    if nest.direct:
        del reversed_steps[starts[-2] :]
    for replay in nest.backward:
        at = slots[replay.slot]
        assert at == starts[replay.start]
        for block, slot in enumerate(replay.stores, replay.start + 1):
            while at < starts[block]:
                at, steps = at + 1, steps + 1
            if slot is not None:
                slots[slot] = at
        held = max(held, len(slots))
        assert at == starts[replay.block]
        steps += nest.blocks[replay.block]
        for step in reversed(range(at, at + nest.blocks[replay.block])):
            assert reversed_steps.pop() == step
    assert not reversed_steps
    return held, steps + (0 if nest.keeps else nest.length)


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_every_constructor_reverses_every_length(maker):
    for length in LENGTHS:
        for options in OPTIONS:
            nest = maker(length, **options)
            check(nest)
            assert (nest.slots, nest.recomputed_steps()) == run(nest)
            assert nest.length == sum(nest.blocks) == length


def test_one_block_needs_one_carry_or_none():
    assert (keep_all(9).slots, keep_all(9).recomputed_steps()) == (1, 9)
    assert (keep_all(9, direct=True).slots, keep_all(9, direct=True).recomputed_steps()) == (0, 0)


@pytest.mark.parametrize("length", [*LENGTHS, 1024, 4093])
def test_levels_cost_one_forward_pass_each(length):
    assert two_level(length).recomputed_steps() == length
    assert two_level(length).slots <= math.isqrt(length - 1) + 1
    for k in (1, 2, 3, 4):
        nest = levels(length, k)
        branch = nest.longest
        assert nest.recomputed_steps() <= max(1, k - 1) * length
        assert branch**k >= length
        assert nest.slots <= (k - 1) * max(1, branch - 1) + 1
    assert levels(length, 2) == two_level(length)


@pytest.mark.parametrize("length", [*LENGTHS, 1024, 4093])
def test_halving_holds_a_logarithm_of_carries(length):
    nest = halving(length)
    assert nest.slots <= (length - 1).bit_length() + 1
    assert nest.recomputed_steps() <= length * ((length - 1).bit_length() / 2 + 1)


@pytest.mark.parametrize("length", LENGTHS)
def test_binomial_recomputes_what_the_closed_form_says(length):
    for slots in (1, 2, 3, 5, 8, length):
        nest = binomial(length, slots)
        assert nest.slots == min(slots, length)
        # One more step is the rest of the program; its sweep of `length` advances is the forward pass, and every block is run.
        assert nest.recomputed_steps() == revolve.cost(length + 1, nest.slots)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 9), st.booleans())
def test_uneven_blocks(blocks, slots, direct):
    nest = uneven(blocks, slots, direct=direct)
    check(nest)
    assert nest.blocks == tuple(blocks)
    assert nest.slots <= slots
    assert (nest.slots, nest.recomputed_steps()) == run(nest)


NEST = two_level(6, 2)
FAULTS = {
    "do not make up 7 steps": replace(NEST, length=7),
    "which holds the carry of block 2": replace(NEST, forward=(0, 1, 1), backward=(Replay(2, 1, 2), *NEST.backward[1:])),
    "which holds nothing": replace(NEST, forward=(0, None, 2)),
    "not each once": replace(NEST, backward=NEST.backward[::-1]),
    "there are 2 slots": replace(NEST, slots=2),
    "has 0 stores": replace(NEST, backward=(Replay(2, 0, 0), *NEST.backward[1:])),
}


@pytest.mark.parametrize("message", FAULTS)
def test_check_says_what_is_wrong(message):
    check(NEST)
    with pytest.raises(InvalidNest, match=message):
        check(FAULTS[message])


@pytest.mark.parametrize(
    "make",
    [
        lambda: keep_all(0),
        lambda: two_level(4, 0),
        lambda: levels(4, 0),
        lambda: binomial(4, 0),
        lambda: uneven([]),
        lambda: uneven([2, 0]),
    ],
)
def test_arguments_are_checked(make):
    with pytest.raises(ValueError, match=r"at least|a loop of"):
        make()


def test_a_nest_says_what_it_is():
    assert str(two_level(7, 3)) == "7 steps in 3 blocks of 1 to 3, 3 carries kept"
    assert str(keep_all(7, direct=True)) == "7 steps kept as they are"
