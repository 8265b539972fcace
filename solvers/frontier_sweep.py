"""One sweep of `frontier`: from the end of the program to its start, with a limited number of states per stage."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.layer import Layer, Numbers, Trail
from solvers.needs import Move, NeedSpace, Stage, Words, holds, to_words
from solvers.potentials import potential

_CROWDED = 4  # times the width: at so many states within a stage, the least promising go
_CANDIDATES = 3  # times the width: among so many states dominance is looked for
_COMPARED = 4000  # states that others are compared with
_CHUNKS = 6
_ENOUGH_STATES = 100  # in a layer, for it to be worth a potential
_MOST_POTENTIALS = 2  # per layer
_TYPICAL = 2000  # states that a potential is made for
_SLACK = 1e-10  # of the cost of everything: rounding errors


@dataclass(frozen=True, slots=True)
class Found:
    """What one sweep found and proved.

    Attributes:
        order: the cheapest schedule; None if there is none below the limit, or none was reached.
        floor: every schedule below the limit other than those cheaper than `order` has at least this overhead: what was
            dropped for want of room or time. Infinite if nothing was.
    """

    order: list[int] | None
    floor: float

    @property
    def complete(self) -> bool:
        """Whether nothing was dropped that could be cheaper."""
        return math.isinf(self.floor)


class Sweep:
    """Sweeps over one space; what they learn about its layers (`potentials`) stays.

    Args:
        space: the sets and moves.
        events: positions at which potentials look at memory, beside their own.
        cap: no schedule of interest has more overhead.
    """

    def __init__(self, space: NeedSpace, events: Sequence[int], cap: float):
        self.space, self.events, self.cap = space, events, cap
        self._slack = _SLACK * space.timeline.graph.keep_all_cost
        self._potentials: dict[int, list[tuple[float, list[tuple[int, float]]]]] = {}
        self._dropped = math.inf
        self._writes = [(to_words([m.writes], space.words), m) for m in space.again]

    def run(self, width: int, limit: float, deadline: float) -> Found:
        """One sweep.

        Args:
            width: states kept per stage.
            limit: overhead of the best known schedule; only cheaper ones count.
            deadline: stop at this value of `time.monotonic()`.
        """
        space, self._dropped = self.space, math.inf
        layer = self._layer(to_words([space.outputs], space.words))
        history: list[tuple[Numbers, Numbers, Trail]] = []
        for stage in reversed(space.stages):
            for p in range(stage.last, stage.first - 1, -1):
                layer = self._before_step(layer, space.moves[p])
            if not len(layer):
                return Found(None, self._dropped)
            layer, trail = layer.distinct(), Trail()
            if stage.first:
                try:
                    found = self._recomputed(layer, stage, trail, width, deadline)
                except TimeoutError:
                    return Found(None, min(self._dropped, float(layer.floor.min())))
                layer = self._selected(found, stage, width, limit, deadline)
            trail, ends = trail.pruned(layer.trail)
            history.append((layer.parent, ends, trail))
            layer = replace(layer, parent=np.arange(len(layer)), trail=np.full(len(layer), -1))
        if not len(layer) or layer.cost.min() >= limit - self._slack:
            return Found(None, self._dropped)
        return Found(self._order(int(layer.cost.argmin()), history), self._floor_above(float(layer.cost.min())))

    def _floor_above(self, cost: float) -> float:
        """What was dropped, if it could be cheaper than a schedule."""
        return self._dropped if self._dropped < cost - self._slack else math.inf

    def _layer(self, needs: Words) -> Layer:
        n = needs.shape[1]
        none = np.full(n, -1)
        size = self._held(needs, range(len(self.space.members)))
        return Layer(needs, size, np.zeros(n), np.zeros(n), none, none, none, np.ones(n, dtype=bool))

    def _held(self, needs: Words, members: Sequence[int] | range) -> Numbers:
        """Units that some of the members take in each set."""
        total = np.zeros(needs.shape[1], dtype=np.int64)
        for i in members:
            total += holds(needs, i) * self.space.size[i]
        return total

    def _back(self, layer: Layer, move: Move, room: int) -> Layer:
        """The states before a step, of those that leave room for it."""
        with_it = layer.size + int(self.space.size[list(move.touched)].sum()) - self._held(layer.needs, move.touched)
        fits = with_it <= room
        layer, with_it = layer.take(fits), with_it[fits]
        writes, reads = (to_words([s], self.space.words) for s in (move.writes, move.reads))
        made = sum(int(self.space.size[i]) for i in move.touched if move.writes >> i & 1)
        return replace(layer, needs=layer.needs & ~writes | reads, size=with_it - made)

    def _before_step(self, layer: Layer, move: Move) -> Layer:
        if not move.touched:
            return layer.take(layer.size <= move.room)
        return self._back(layer, move, move.room)

    def _recomputed(self, layer: Layer, stage: Stage, trail: Trail, width: int, deadline: float) -> Layer:
        """These states, and all that recomputations in a stage lead back to."""
        newest = replace(layer, last=np.full(len(layer), -1))
        found = newest
        for _ in range(stage.runs):
            made = self._one_run(newest, stage, trail, width, deadline)
            if not len(made):
                break
            found = Layer.joined([found, made]).distinct()
            newest = _ready(found.take(~found.fresh))
            found = _ready(found)
        return found

    def _one_run(self, layer: Layer, stage: Stage, trail: Trail, width: int, deadline: float) -> Layer:
        """What one run of recomputations in increasing position leads back to, itself left out."""
        chunks, most = [layer], _CROWDED * width
        needed = np.bitwise_or.reduce(layer.needs, axis=1, keepdims=True)
        for writes, move in reversed(self._writes):
            if move.position >= stage.first or not (needed & writes).any():
                continue
            room = self.space.room(stage.held + move.workspace)
            made: list[Layer] = []
            for chunk in chunks:
                allowed = np.where(chunk.fresh, chunk.last < move.position, chunk.last > move.position)
                allowed &= (chunk.needs & writes).any(axis=0) & (chunk.cost + move.cost < self.cap)
                if allowed.any():
                    before = self._back(chunk.take(allowed), move, room)
                    if len(before):
                        made.append(self._charged(before, move, trail))
            if made:
                chunks += made
                needed |= np.bitwise_or.reduce(Layer.joined(made).needs, axis=1, keepdims=True)
            if len(chunks) > _CHUNKS:
                chunks = [self._thinned(Layer.joined(chunks), most)]
            if time.monotonic() > deadline:
                raise TimeoutError
        every = Layer.joined(chunks)
        return every.take(~every.fresh)

    def _charged(self, layer: Layer, move: Move, trail: Trail) -> Layer:
        n, cost = len(layer), layer.cost + move.cost
        return replace(
            layer,
            cost=cost,
            floor=np.maximum(layer.floor, cost),
            trail=trail.extend(layer.trail, move.position),
            last=np.full(n, move.position),
            fresh=np.zeros(n, dtype=bool),
        )

    def _thinned(self, layer: Layer, most: int) -> Layer:
        return layer if len(layer) <= most else self._cut(layer.distinct(), most)

    def _cut(self, layer: Layer, most: int) -> Layer:
        """The most promising states; the floor of the others is remembered."""
        if len(layer) <= most:
            return layer
        order = layer.by_floor()
        self._dropped = min(self._dropped, float(layer.floor[order[most]]))
        return layer.take(order[:most])

    def _selected(self, layer: Layer, stage: Stage, width: int, limit: float, deadline: float) -> Layer:
        """The states of a layer that are worth going on with, at most `width`."""
        layer = layer.take(layer.size <= self.space.room(stage.held))
        known = self._potentials.setdefault(stage.first, [])
        for base, prices in known:
            layer = self._with_potential(layer, base, prices)
        layer = layer.take(layer.floor < limit - self._slack)
        wanted = len(layer) > _ENOUGH_STATES and len(known) < _MOST_POTENTIALS
        if wanted and (more := self._new_potential(layer, stage, deadline)) is not None:
            known.append(more)
            layer = self._with_potential(layer, *more)
            layer = layer.take(layer.floor < limit - self._slack)
        layer = self._cut(layer, _CANDIDATES * width)
        return self._cut(layer.undominated(_COMPARED), width)

    def _with_potential(self, layer: Layer, base: float, prices: list[tuple[int, float]]) -> Layer:
        least = np.full(len(layer), base)
        for i, price in prices:
            least += holds(layer.needs, i) * price
        return replace(layer, floor=np.maximum(layer.floor, layer.cost + np.maximum(least - self._slack, 0.0)))

    def _new_potential(self, layer: Layer, stage: Stage, deadline: float) -> tuple[float, list[tuple[int, float]]] | None:
        space = self.space
        if not self.events or stage.first - 1 <= self.events[0]:
            return None
        needs = layer.needs[:, layer.by_floor()[:_TYPICAL]]
        share = {u: float(holds(needs, i).mean()) for u, i in space.index.items()}
        seconds = deadline - time.monotonic()
        made = potential(space.timeline, space.budget, self.events, stage.first - 1, share, seconds=seconds)
        if made is None:
            return None
        return made.base, [(space.index[u], price) for u, price in made.price.items() if u in space.index]

    def _order(self, state: int, history: list[tuple[Numbers, Numbers, Trail]]) -> list[int]:
        """The schedule that leads through a state of the last layer."""
        steps, found = self.space.timeline.graph.steps, list[int]()
        for stage, (parent, ends, trail) in zip(self.space.stages, reversed(history), strict=True):
            found.extend(steps[p] for p in trail.positions(int(ends[state])))
            found.extend(steps[stage.first : stage.last + 1])
            state = int(parent[state])
        return found


def _ready(layer: Layer) -> Layer:
    """The states, ready for another run of recomputations."""
    return replace(layer, fresh=np.ones(len(layer), dtype=bool))
