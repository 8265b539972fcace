"""The forward and the backward pass of a loop, as a nest has them.

Both read the nest from constant tables, so that their size does not depend on the loop's length. The backward pass is one loop
over blocks, from the last: it restores the carry at the start of the block, runs the block forward, stacking what is kept of
each step, and backward. One accumulator for the gradients of each constant goes through all of it, and gradients of slices are
written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from remat_lab import _jax
from remat_lab.loop import PlannedLoop
from remat_lab.loop_body import Body, Moving, body_of, strong
from remat_lab.loop_tables import Sweep, Tables, tables

Arrays = list[Any]


@dataclass(frozen=True)
class Passes:
    """Both passes of one loop.

    Attributes:
        planned: the loop and its nest.
        body: one step of it.
        tables: the nest.
    """

    planned: PlannedLoop
    body: Body
    tables: Tables

    @classmethod
    def of(cls, planned: PlannedLoop, moving: Moving) -> Passes:
        """The passes of a loop through some operands of which tangents flow."""
        return cls(planned, body_of(planned.loop, moving), tables(planned.nest))

    @property
    def kept(self) -> tuple[int, ...]:
        """Values of the body's program that are stacked for each step of a block."""
        return self.body.kept(self.planned.tier if self.planned.nest.keeps else np.inf)

    def forward(self, operands: Sequence[Any]) -> tuple[Arrays, Arrays]:
        """The loop itself.

        Args:
            operands: constants, carries, xs.

        Returns:
            Final carries and ys; and what `backward` reads: slots, values that no replay may compute again, and residuals of
            the last block if the nest has them kept. All of the second have the slot or the step in front.
        """
        loop, body = self.planned.loop, self.body
        consts, init, xs = loop.split(operands)
        carry = [strong(c) for c in init]
        shared = self._shared(consts)
        outs = [_buffer(loop.length, aval) for aval in loop.out_avals[loop.carries :]]
        outs += [_buffer(loop.length, body.program.avals[v]) for v in body.pinned]
        slots = [_buffer(self.planned.nest.slots, aval) for aval in loop.out_avals[: loop.carries]]

        def step(k: Any, state: tuple[Arrays, Arrays]) -> tuple[Arrays, Arrays]:
            carry, outs = state
            env = self._env(shared, carry, xs, k, ())
            result = body.compute(env, [*body.outputs[0], *body.outputs[1], *body.pinned], effects=True)
            return result[: loop.carries], _put(outs, self._place(k), result[loop.carries :])

        def run(r: Any, state: tuple[Arrays, Arrays, Arrays]) -> tuple[Arrays, Arrays, Arrays]:
            carry, outs, slots = state
            slots = _store(slots, _at(sweep.slot, r), carry)
            return (*self._steps(sweep, r, step, (carry, outs)), slots)

        sweep = self.tables.forward
        state = _loop(len(sweep.begin), run, (carry, outs, slots))
        carry, outs, slots = state
        residuals: Arrays = []
        if self.tables.direct is not None:
            begin, count = self.tables.direct
            residuals = [_buffer(count, body.program.avals[v]) for v in self.kept]

            def keeping(i: Any, state: tuple[Arrays, Arrays, Arrays]) -> tuple[Arrays, Arrays, Arrays]:
                carry, outs, residuals = state
                k = i + np.int32(begin)
                env = self._env(shared, carry, xs, k, ())
                atoms = [*body.outputs[0], *body.outputs[1], *body.pinned, *self.kept]
                result = body.compute(env, atoms, effects=True)
                ends = loop.carries, loop.carries + len(outs)
                return (
                    result[: ends[0]],
                    _put(outs, self._place(k), result[ends[0] : ends[1]]),
                    _put(residuals, i, result[ends[1] :]),
                )

            carry, outs, residuals = _loop(count, keeping, (carry, outs, residuals), unroll=loop.unroll)
        ys, pinned = outs[: len(body.moving_ys)], outs[len(body.moving_ys) :]
        return [*carry, *ys], [*slots, *pinned, *residuals]

    def scan(self, operands: Sequence[Any]) -> Arrays:
        """The forward pass as a plain scan: final carries and ys."""
        loop, body = self.planned.loop, self.body
        consts, init, xs = loop.split(operands)
        shared = self._shared(consts)

        def step(carry: Arrays, x: Arrays) -> tuple[Arrays, Arrays]:
            env = {**shared, **dict(zip(body.inputs[1], carry, strict=True)), **dict(zip(body.inputs[2], x, strict=True))}
            result = body.compute(env, [*body.outputs[0], *body.outputs[1]], effects=True)
            return result[: loop.carries], result[loop.carries :]

        carry, ys = lax.scan(step, [strong(c) for c in init], xs, loop.length, reverse=loop.reverse, unroll=loop.unroll)
        return [*carry, *ys]

    def backward(self, operands: Sequence[Any], stored: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        """Gradients of the moving operands.

        Args:
            operands: constants, carries, xs.
            stored: what `forward` returned for this.
            cotangents: of the moving final carries and ys; None for zeros.
        """
        loop, body = self.planned.loop, self.body
        consts, _, xs = loop.split(operands)
        moving_consts, moving_carries, moving_xs = loop.split(body.moving)
        slots, rest = list(stored[: loop.carries]), list(stored[loop.carries :])
        pinned, residuals = rest[: len(body.pinned)], rest[len(body.pinned) :]
        count_carries = sum(moving_carries)
        ends = [_zeros(aval) if ct is None else ct for ct, aval in zip(cotangents, self._cotangent_avals(), strict=True)]
        ct_ys = cotangents[count_carries:]
        shared = self._shared(consts)
        totals = [_zeros(jax.typeof(c)) for c, m in zip(consts, moving_consts, strict=True) if m]
        grads = [_zeros(jax.typeof(x)) for x, m in zip(xs, moving_xs, strict=True) if m]

        def reverse_block(state: tuple[Arrays, Arrays, Arrays], kept: Arrays, begin: Any, count: Any) -> Any:
            def step(i: Any, state: tuple[Arrays, Arrays, Arrays]) -> tuple[Arrays, Arrays, Arrays]:
                ct_carry, totals, grads = state
                j = count - np.int32(1) - i
                k = begin + j
                env = self._env(shared, None, xs, k, pinned)
                env.update(zip(self.kept, _rows(kept, j), strict=True))
                env.update(zip(body.inputs[3], ct_carry, strict=True))
                row = [
                    _zeros(aval) if ct is None else _at(ct, self._place(k))
                    for ct, aval in zip(ct_ys, self._cotangent_avals()[count_carries:], strict=True)
                ]
                env.update(zip(body.inputs[4], row, strict=True))
                totals, ct_carry, rows = body.reverse(env, totals)
                return ct_carry, totals, _put(grads, self._place(k), rows)

            return _loop(count, step, state, unroll=loop.unroll)

        def advance_step(k: Any, carry: Arrays) -> Arrays:
            return body.compute(self._env(shared, carry, xs, k, pinned), body.outputs[0], effects=True)

        def replay(r: Any, state: tuple[Arrays, Any]) -> tuple[Arrays, Any]:
            slots, reversed_state = state
            held = slots if table.stores else first_slots
            carry = _rows(held, _at(table.slot, r))
            if len(table.advance.begin):

                def run(a: Any, state: tuple[Arrays, Arrays]) -> tuple[Arrays, Arrays]:
                    carry, slots = state
                    if table.stores:
                        slots = _store(slots, _at(table.advance.slot, a), carry)
                    return self._steps(table.advance, a, advance_step, carry), slots

                first, last = _at(table.first, r), _at(table.first, r + np.int32(1))
                carry, slots = lax.fori_loop(first, last, run, (carry, slots))
            begin = _at(table.begin, r)
            count = _only(table.count)
            count = _at(table.count, r) if count is None else count
            shapes = [body.program.avals[v] for v in self.kept]
            # XLA would make one array of all zeros of a shape, at the start, and copy it: not if this one waits for the carry.
            zeros = _zeros_after(carry, shapes) if len(table.slot) == 1 else [0] * len(shapes)
            buffers = [_buffer(int(table.count.max()), aval, zero) for aval, zero in zip(shapes, zeros, strict=True)]

            def keep_step(i: Any, state: tuple[Arrays, Arrays]) -> tuple[Arrays, Arrays]:
                carry, buffers = state
                env = self._env(shared, carry, xs, begin + i, pinned)
                result = body.compute(env, [*body.outputs[0], *self.kept], effects=True)
                return result[: loop.carries], _put(buffers, i, result[loop.carries :])

            _, buffers = _loop(count, keep_step, (carry, buffers), unroll=loop.unroll)
            return slots, reverse_block(reversed_state, buffers, begin, count)

        table = self.tables
        state = (ends[:count_carries], totals, grads)
        if table.direct is not None:
            begin, count = table.direct
            state = reverse_block(state, residuals, np.int32(begin), count)
            if len(table.slot) == 1:  # of more than one XLA makes a loop, which waits for what it starts from
                slots, state = _after(state, slots)
        first_slots = slots
        replays = len(table.slot)
        _, state = _loop(replays, replay, (slots if table.stores else [], state))
        ct_carry, totals, grads = state
        return [*totals, *ct_carry, *grads]

    def _cotangent_avals(self) -> list[Any]:
        """Types of the cotangents of one step's moving carries and ys."""
        moves = (*self.body.moving_carries, *self.body.moving_ys)
        return [aval for aval, m in zip(self.planned.loop.out_avals, moves, strict=True) if m]

    def _shared(self, consts: Sequence[Any]) -> dict[int, Any]:
        """Values that all steps read, computed here."""
        env = dict(zip(self.body.inputs[0], consts, strict=True))
        hoisted = self.body.compute(dict(env), self.body.hoisted)
        return {**env, **dict(zip(self.body.hoisted, hoisted, strict=True))}

    def _place(self, k: Any) -> Any:
        """The index of the slices that step k takes."""
        return np.int32(self.planned.loop.length - 1) - k if self.planned.loop.reverse else k

    def _env(
        self, shared: dict[int, Any], carry: Sequence[Any] | None, xs: Arrays, k: Any, pinned: Sequence[Any]
    ) -> dict[int, Any]:
        body, place = self.body, self._place(k)
        env = {**shared, **dict(zip(body.inputs[2], _rows(xs, place), strict=True))}
        if carry is not None:
            env.update(zip(body.inputs[1], carry, strict=True))
        if pinned:
            env.update(zip(body.pinned, _rows(pinned, place), strict=True))
        return env

    def _steps(self, sweep: Sweep, r: Any, step: Callable[[Any, Any], Any], state: Any) -> Any:
        """The steps of run r of a sweep."""
        begin, count = _at(sweep.begin, r), _only(sweep.count)
        count = _at(sweep.count, r) if count is None else count
        return _loop(count, lambda i, s: step(begin + i, s), state, unroll=self.planned.loop.unroll)


def _after(done: Any, arrays: Arrays) -> tuple[Arrays, Any]:
    """The same arrays, to be read only once something else is done: XLA could fill the next block before it ends the last."""
    plain = [i for i, x in enumerate(arrays) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)]
    held, done = lax.optimization_barrier(([arrays[i] for i in plain], done))
    later = dict(zip(plain, held, strict=True))
    return [later.get(i, x) for i, x in enumerate(arrays)], done


def _only(counts: np.ndarray) -> int | None:
    """The number of steps that all runs have, if they have the same."""
    return int(counts[0]) if len(counts) and (counts == counts[0]).all() else None


def _loop(count: Any, step: Callable[[Any, Any], Any], state: Any, *, unroll: int | bool = 1) -> Any:
    """Runs `step(i, state)` for i below the count, which may be traced; one step that is known to be one runs as it is."""
    if isinstance(count, int):
        if count == 0:
            return state
        if count == 1:
            return step(np.int32(0), state)
        return lax.scan(lambda s, i: (step(i, s), None), state, jnp.arange(count, dtype=jnp.int32), unroll=unroll)[0]
    return lax.fori_loop(np.int32(0), count, step, state)


def _at(stacked: Any, index: Any) -> Any:
    if isinstance(index, np.integer) and isinstance(stacked, np.ndarray):
        return stacked[index]
    return lax.dynamic_index_in_dim(stacked, index, keepdims=False, allow_negative_indices=False)


def _rows(stacked: Sequence[Any], index: Any) -> Arrays:
    return [_at(x, index) for x in stacked]


def _put(stacked: Sequence[Any], index: Any, rows: Sequence[Any]) -> Arrays:
    return [
        lax.dynamic_update_index_in_dim(x, row, index, 0, allow_negative_indices=False)
        for x, row in zip(stacked, rows, strict=True)
    ]


def _store(slots: Arrays, slot: Any, carry: Arrays) -> Arrays:
    """Slots with the carry in one of them; unchanged if that is -1. In place: a branch would copy."""
    place = jnp.maximum(slot, np.int32(0))
    rows = [lax.select(jnp.broadcast_to(slot >= 0, c.shape), c, _at(x, place)) for x, c in zip(slots, carry, strict=True)]
    return _put(slots, place, rows)


def _buffer(rows: int, aval: Any, fill: Any = 0) -> Any:
    return _jax.vary_like(lax.full((rows, *aval.shape), fill, aval.dtype), aval)


def _zeros_after(done: Arrays, avals: Sequence[Any]) -> Arrays:
    """A zero of each type that is known only once something else is done."""
    kinds = sorted({str(aval.dtype) for aval in avals if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)})
    plain = [x for x in done if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)]
    zeros, _ = lax.optimization_barrier(([jnp.zeros((), kind) for kind in kinds], plain))
    known: dict[str, Any] = dict(zip(kinds, zeros, strict=True))
    return [known.get(str(aval.dtype), 0) for aval in avals]


def _zeros(aval: Any) -> Any:
    return _jax.vary_like(jnp.zeros(aval.shape, aval.dtype), aval)
