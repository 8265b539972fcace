"""Values that are compared with what was chosen from them, bit for bit.

JAX finds out which element a maximum chose by comparing: the derivative of `z = max(x, y)` goes to x where `x == z`, that of
a reduction's maximum to the elements equal to it; users write `x >= top_k(x)[0][:, -1:]`. Such a comparison is right only if
both sides hold the same bits. Two kernels that compute x need not agree on its last bit (products and sums are contracted in
one and not in the other, a polynomial is vectorised differently), and then no element is equal, and a gradient is silently
zero. So a comparison of this kind is never split from its choice:

- where the choice is made element by element, whoever computes the comparison makes the choice again, in the same kernel;
- where it is a reduction, x is written to memory, and one step that is never repeated makes choice and comparison from it;
- otherwise (a threshold from sorted values) x and the comparison are written and never computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_lab.flatten import Program
from remat_lab.primitives import MOVEMENT, VIEWS

COMPARISONS = frozenset("eq ne ge gt le lt eq_to le_to lt_to".split())
ELEMENTWISE = frozenset("max min".split())
REDUCED = frozenset("reduce_max reduce_min".split())
SORTED = frozenset("approx_top_k cummax cummin reduce_window_max reduce_window_min sort top_k".split())

_PASSED = MOVEMENT | VIEWS | frozenset("convert_element_type dynamic_slice gather".split())
_PLAIN = VIEWS | frozenset("broadcast_in_dim convert_element_type copy transpose".split())


@dataclass(frozen=True, slots=True)
class Choice:
    """A comparison with something chosen from one of its operands.

    Attributes:
        comparison: position of the equation that compares.
        chooser: position of the one that chose.
        between: positions of the ones that bring the choice into the comparison's shape.
        compared: the value that both read.
        kind: "elementwise", "reduced" or "sorted".
    """

    comparison: int
    chooser: int
    between: tuple[int, ...]
    compared: int
    kind: str


Roots = tuple[int, ...]
ONCE = "it is compared with what was chosen from it, bit for bit"


@dataclass
class Settled:
    """Steps in which no comparison is split from its choice.

    Attributes:
        steps: the equations that each step writes, with the position of the step it was; None for a new one.
        again: for a comparison, the equations that whoever computes it computes too, though their results are written.
        once: equations that must not run twice for a comparison's sake.
        exact: values that must be read from memory by all who compare them.
    """

    steps: list[tuple[Roots, int | None]]
    again: dict[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    once: frozenset[int] = frozenset()
    exact: frozenset[int] = frozenset()


def settle(program: Program, base: Sequence[int], steps: Sequence[Roots], last_primal: int) -> Settled:
    """Changes steps where one would compare what another has chosen.

    Args:
        program: the program.
        base: for each value the value whose bytes it is.
        steps: for each the equations whose results it writes, in an order in which each reads what earlier ones write.
        last_primal: position of the last equation of the forward pass.
    """
    settled = Settled([(roots, n) for n, roots in enumerate(steps)])
    once, exact = set[int](), set[int]()
    for choice in choices(program, base):
        inside = frozenset((choice.chooser, *choice.between))
        if choice.kind == "elementwise":
            settled.again[choice.comparison] = settled.again.get(choice.comparison, frozenset()) | inside
            continue
        maker = program.producer.get(choice.compared)
        if maker is None:
            continue  # an argument has the same bits for everyone
        exact.add(choice.compared)
        _write(program, settled, maker)
        once.add(choice.comparison)
        if choice.kind == "reduced" and (choice.chooser <= last_primal) == (choice.comparison <= last_primal):
            settled.again[choice.comparison] = frozenset(choice.between)
            _write(program, settled, choice.chooser)
            _join(settled, choice.chooser, choice.comparison)
        else:
            _write(program, settled, choice.comparison)
            once.add(maker)
    settled.once, settled.exact = frozenset(once), frozenset(exact)
    return settled


def _write(program: Program, settled: Settled, equation: int) -> None:
    """Makes sure that a step writes an equation's results: a new one, if need be, as soon as its operands are there."""
    written = {k for roots, _ in settled.steps for k in roots}
    if equation in written:
        return
    needed, todo, seen = set[int](), [equation], set[int]()
    while todo:
        for v in program.equations[todo.pop()].reads:
            k = program.producer.get(v)
            if k is not None and k not in seen:
                seen.add(k)
                if k in written:
                    needed.add(k)
                else:
                    todo.append(k)
    after = max((n for n, (roots, _) in enumerate(settled.steps) if needed.intersection(roots)), default=-1)
    settled.steps.insert(after + 1, ((equation,), None))


def _join(settled: Settled, chooser: int, comparison: int) -> None:
    """Moves a comparison into the step of its choice."""
    steps: list[tuple[Roots, int | None]] = []
    for roots, n in settled.steps:
        left = tuple(k for k in roots if k != comparison or chooser in roots)
        if chooser in left:
            left = tuple(sorted({*left, comparison}))
        if left:
            steps.append((left, n))
    settled.steps[:] = steps


def choices(program: Program, base: Sequence[int]) -> tuple[Choice, ...]:
    """All comparisons of a program with something chosen from an operand.

    Args:
        program: the program.
        base: for each value the value whose bytes it is.
    """
    found: list[Choice] = []
    for k, q in enumerate(program.equations):
        if q.name not in COMPARISONS or len(q.ins) < 2:
            continue
        for one, other in ((q.ins[0], q.ins[1]), (q.ins[1], q.ins[0])):
            if isinstance(one, int) and isinstance(other, int):
                choice = _chosen(program, base, k, one, other)
                if choice is not None:
                    found.append(choice)
    return tuple(found)


def _chosen(program: Program, base: Sequence[int], comparison: int, one: int, other: int) -> Choice | None:
    """The choice behind `one`, if it was made from `other`."""
    between: list[int] = []
    k = program.producer.get(one)
    while (
        k is not None
        and program.equations[k].name in _PASSED
        and program.equations[k].ins
        and isinstance(program.equations[k].ins[0], int)
    ):
        between.append(k)
        k = program.producer.get(program.equations[k].ins[0])  # type: ignore[arg-type]
    if k is None:
        return None
    q = program.equations[k]
    if q.name not in ELEMENTWISE | REDUCED | SORTED:
        return None
    source = _source(program, base, other)
    if source not in {_source(program, base, v) for v in q.reads}:
        return None
    plain = all(program.equations[b].name in _PLAIN for b in between)
    kind = "sorted" if q.name in SORTED or not plain else "elementwise" if q.name in ELEMENTWISE else "reduced"
    return Choice(comparison, k, tuple(sorted(between)), source, kind)


def _source(program: Program, base: Sequence[int], value: int) -> int:
    """The value behind conversions and views: those are exact, or done alike on both sides."""
    value = base[value]
    while (k := program.producer.get(value)) is not None and program.equations[k].name == "convert_element_type":
        operand = program.equations[k].ins[0]
        if not isinstance(operand, int):
            break
        value = base[operand]
    return value
