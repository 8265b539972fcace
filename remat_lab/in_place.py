"""What a loop computes in the buffers that it was given.

XLA runs a loop on one buffer per carry: the carry's first value, the values between and the result share it. A first value that
somebody else needs too is copied there.
"""

from __future__ import annotations

import math
import random

from remat_lab.flatten import Program
from remat_lab.primitives import FUSIBLE, carried_operands
from remat_lab.steps import Fused
from solvers.reorder import lean_orders
from solvers.schedule import Schedule
from solvers.simulate import simulate

_ORDERS = 4  # tries of `lean_orders` without chance

_SMALL_PART = 8  # a value is filled rather than computed if what is read for it is this much smaller


def is_filled(program: Program, value: int) -> bool:
    """Whether a value is written from next to nothing, zeros say: a loop that starts with it does so in its result's buffer."""
    k = program.producer.get(value)
    if k is None or program.equations[k].name not in FUSIBLE:
        return False
    return _SMALL_PART * sum(program.bytes[v] for v in program.equations[k].reads) <= program.bytes[value]


def only_carried(program: Program, base: list[int], k: int, value: int) -> bool:
    """Whether a loop reads a value as the first value of its carries only."""
    q = program.equations[k]
    carried = carried_operands(q.eqn)
    return bool(carried) and all(p in carried for p, v in enumerate(q.ins) if isinstance(v, int) and base[v] == value)


def accumulates(program: Program, k: int) -> bool:
    """Whether an equation of a loop's body changes what the body was given into what it returns, in that buffer.

    Then what is added to it needs a buffer of its own.
    """
    q = program.equations[k]
    return q.outs[0] in program.outputs and any(
        v in program.inputs and program.bytes[v] == program.bytes[q.outs[0]] for v in q.reads
    )


def reused(program: Program, base: list[int], readers: dict[int, list[int]], *, owned: bool) -> tuple[dict[int, int], set[int]]:
    """What loops need not allocate.

    Args:
        program: the program.
        base: for each value the value whose bytes it is.
        readers: positions of the equations that read each value.
        owned: whether the program's inputs may be written over if nobody reads them any more.

    Returns:
        For loops, the bytes of first values that are nodes of the program and die there: they are their results' buffers, so
        while the loop runs both are one. And the values that take no bytes at all: first values in the buffers of the
        program's own results, results in the buffers of its inputs, and results that nobody reads.
    """
    placed = {base[v] for v in program.outputs if isinstance(v, int)}
    shared: dict[int, int] = {}
    free: set[int] = set()
    for k in reversed(range(len(program.equations))):
        q = program.equations[k]
        carried = carried_operands(q.eqn)
        if not carried:  # nearly all: what follows looks at the whole program
            continue
        dying = dying_operands(program, base, readers, k, owned=owned)
        for p, out in zip(carried, q.outs, strict=False):
            atom = q.ins[p]
            if p not in dying or not isinstance(atom, int) or is_filled(program, base[atom]):
                continue
            value = base[atom]
            if value not in program.producer:
                free.add(out)
            elif out in placed:
                free.add(value)
                placed.add(value)
            elif out not in readers:
                free.add(out)
            else:
                shared[k] = shared.get(k, 0) + program.bytes[value]
    return shared, free


def dying_operands(
    program: Program, base: list[int], readers: dict[int, list[int]], k: int, *, owned: bool = False
) -> frozenset[int]:
    """Positions of the operands of equation k that nobody needs once it has read them: their bytes are free from then on.

    Args:
        program: the program.
        base: for each value the value whose bytes it is.
        readers: positions of the equations that read each value.
        k: the equation.
        owned: whether the program's inputs may be among them.
    """
    outputs = {base[v] for v in program.outputs if isinstance(v, int)}
    values = [base[v] if isinstance(v, int) else None for v in program.equations[k].ins]
    lasting = program.constants.keys() if owned else {*program.inputs, *program.constants}
    return frozenset(
        p
        for p, v in enumerate(values)
        if v is not None and v not in lasting and v not in outputs and readers[v] == [k] and values.count(v) == 1
    )


def body_peak(body: Fused, dying: frozenset[int] = frozenset()) -> int:
    """Bytes that a loop's body, or a loop written out, needs beside its inputs and results.

    XLA orders a body as it likes: the best of a few orders is taken.

    Args:
        body: its steps.
        dying: inputs that the caller charges for as long as the whole runs, though they are read for the last time on the
            way: what they leave free is taken off.
    """
    graph, program = body.graph, body.program
    orders = lean_orders(graph, rng=random.Random(0), tries=_ORDERS, deadline=math.inf, keep=1)
    if not dying:
        return min(simulate(graph, Schedule.from_order(graph, order)).peak for order in orders)
    order = graph.steps
    last = dict.fromkeys((program.inputs[p] for p in dying), -1)
    for position, v in enumerate(order):
        last.update(dict.fromkeys(set(body.groups[v].reads) & set(last), position))
    live = simulate(graph, Schedule.from_order(graph, order)).live
    left = [sum(program.bytes[v] for v, position in last.items() if position >= at) for at in range(len(order))]
    charged = sum(program.bytes[v] for v in last)
    return max(0, max(map(int.__add__, live, left), default=0) - charged)
