"""Long sums, added up one by one: the gradient of weights that every step of an unrolled loop reads, say.

Inside one kernel, all addends would be live until the last is there. Written at each addition, the sum so far takes the buffer
of an addend, and two are live at a time, as in XLA's own programs, which do not fuse sums of that length.
"""

from __future__ import annotations

from remat_lab.flatten import Program

_MANY = 4  # addends; sums of two and three, where paths through a network meet, stay part of what reads them


def running_sums(program: Program, base: list[int], readers: dict[int, list[int]], heavy: list[bool]) -> set[int]:
    """The additions of sums of at least four results of heavy equations, each read by its addition alone.

    Args:
        program: the equations.
        base: for each value, the value whose bytes it is.
        readers: for each value, the equations that read its bytes.
        heavy: for each equation, whether its results are written to memory whoever reads them.
    """
    equations, producer = program.equations, program.producer

    def addend(value: int) -> bool:
        """Whether a heavy equation made a value, transposed or not, that nobody else reads."""
        p = producer.get(value)
        while p is not None and not heavy[p] and equations[p].name == "transpose":
            value = base[equations[p].reads[0]]
            p = producer.get(value) if len(readers[value]) == 1 else None
        return p is not None and heavy[p]

    count: dict[int, int] = {}  # by addition: addends behind it
    goes_on: dict[int, int] = {}  # an addition and the one that adds to its result
    for k, q in enumerate(equations):
        if q.name not in ("add", "add_any"):
            continue
        count[k] = 0
        for value in {base[u] for u in q.reads}:
            p = producer.get(value, -1)
            if readers[value] != [k] or program.bytes[value] != program.bytes[q.outs[0]]:
                continue
            if count.get(p):
                count[k] += count[p]
                goes_on[p] = k
            else:
                count[k] += addend(value)
    total: dict[int, int] = {}
    for k in reversed(count):
        total[k] = total[goes_on[k]] if k in goes_on else count[k]
    return {k for k, n in total.items() if n >= _MANY and count[k] > 1}
