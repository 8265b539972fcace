"""FLOPs of a compiled program that XLA's cost analysis leaves out: those of loops' trips after the first.

The cost analysis counts a loop's body once, however often it runs. Here the instructions of bodies are counted as it counts
them: two for each multiplication of a dot, one for each element that elementwise arithmetic writes or a reduction reads.
Convolutions in loops and what libraries do are not counted.
"""

from __future__ import annotations

import math
import re

from remat_lab.hlo import Computation, Instruction, Module
from remat_lab.kernels import trips

_ELEMENTWISE = frozenset(
    "add subtract multiply divide maximum minimum negate abs compare select and or xor not convert clamp sign".split()
)
_DIMS = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


def repeated_flops(module: Module) -> float | None:
    """FLOPs of all trips of all loops after the first of each; None if the compiler does not know how often some loop runs."""
    every = _flops(module, module.entry, again=True)
    return None if math.isnan(every) else every - _flops(module, module.entry, again=False)


def _flops(module: Module, name: str, again: bool) -> float:
    """FLOPs of a computation and what it calls, with every trip or, as the cost analysis has it, one.

    Not a number if trips are not known of a loop that does any work.
    """
    body = module.computations[name]
    total = 0.0
    for i in body.instructions:
        if i.opcode == "while":
            once = sum(_flops(module, inner, again) for inner in i.called("condition", "body"))
            times = trips(i) if again else 1
            total += once * times if times is not None else math.nan if once else 0.0
        elif i.opcode == "conditional":
            sides = i.called("branch_computations", "true_computation", "false_computation")
            found = [_flops(module, side, again) for side in sides]
            total += math.nan if any(map(math.isnan, found)) else max(found, default=0.0)
        elif i.opcode in ("fusion", "call", "async-start"):
            total += sum(_flops(module, inner, again) for inner in i.called("calls", "to_apply"))
        else:
            total += _own(body, i)
    return total


def _own(body: Computation, i: Instruction) -> float:
    if i.opcode == "dot":
        left = body.by_name[i.operands[0]].arrays[0].dims
        contracted = _DIMS.search(i.text)
        inner = [left[int(d)] for d in contracted.group(1).split(",") if d] if contracted else []
        return 2.0 * math.prod(i.arrays[0].dims) * math.prod(inner)
    if i.opcode in _ELEMENTWISE:
        return float(math.prod(i.arrays[0].dims))
    if i.opcode == "reduce":
        return float(math.prod(body.by_name[i.operands[0]].arrays[0].dims))
    return 0.0
