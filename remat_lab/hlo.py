"""The compiler's own text of a program (HLO) → computations and instructions, with the bytes of every array as laid out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from remat_lab.errors import InvalidArgument

_WIDTH_BITS = {
    "pred": 8, "token": 0, "opaque": 0,
    "s2": 2, "u2": 2, "s4": 4, "u4": 4, "f4e2m1fn": 4,
    "s8": 8, "u8": 8, "s16": 16, "u16": 16, "f16": 16, "bf16": 16, "s32": 32, "u32": 32, "f32": 32,
    "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](\{[^}]*\})?|\btoken\b")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_NAME = re.compile(r"%([\w.\-]+)")
_START = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = ")
_TILE = re.compile(r"T\(([\d,*]+)\)")


@dataclass(frozen=True, slots=True)
class Array:
    """An array in memory.

    Attributes:
        dtype: HLO's name of the type.
        dims: its shape.
        bytes: what it takes as laid out: a TPU pads the last dimensions to its tiles.
    """

    dtype: str
    dims: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        name: unique in its module.
        opcode: what it does.
        arrays: its result, one array or, for a tuple, all of them in order.
        is_tuple: whether the result is a tuple.
        operands: names of the instructions that it reads.
        text: everything after the operands: attributes and metadata.
        is_root: whether it is its computation's result.
        inside: what stands between its parentheses, if that is short (a parameter's number).
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    is_tuple: bool
    operands: tuple[str, ...]
    text: str
    is_root: bool
    inside: str

    @property
    def bytes(self) -> int:
        """Bytes of all its results."""
        return sum(array.bytes for array in self.arrays)

    @property
    def op_name(self) -> str:
        """The name that the frontend gave it; empty if it has none."""
        return self.attribute(r'op_name="([^"]*)"')

    def attribute(self, pattern: str) -> str:
        """The first group of a pattern in the attributes; empty if it is not there."""
        match = re.search(pattern, self.text)
        return match.group(1) if match else ""

    def called(self, *keys: str) -> list[str]:
        """Names of the computations under these attributes."""
        found: list[str] = []
        for key in keys:
            match = re.search(rf"\b{key}=(\{{[^}}]*\}}|%?[\w.\-]+)", self.text)
            if match:
                found += re.findall(r"[\w.\-]+", match.group(1))
        return found


@dataclass(frozen=True)
class Computation:
    """A named sequence of instructions, in order of execution where the module is scheduled."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Instructions by name."""
        return {i.name: i for i in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        """The result."""
        return next((i for i in self.instructions if i.is_root), self.instructions[-1])

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Parameters by position."""
        return {int(i.inside): i for i in self.instructions if i.opcode == "parameter"}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Who reads each instruction."""
        found: dict[str, list[Instruction]] = {}
        for i in self.instructions:
            for name in dict.fromkeys(i.operands):
                found.setdefault(name, []).append(i)
        return found


@dataclass(frozen=True)
class Module:
    """A compiled program."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Module:
    """Reads what `jax.stages.Compiled.as_text` returns.

    Raises:
        ValueError: if there is no entry computation in it.
    """
    computations: dict[str, Computation] = {}
    entry, name = None, None
    body: list[Instruction] = []
    for line in text.splitlines():
        if name is None:
            header = _HEADER.match(line)
            if header:
                name, body = header.group(2), []
                if header.group(1):
                    entry = name
        elif line.startswith("}"):
            computations[name] = Computation(name, tuple(body))
            name = None
        else:
            found = _instruction(line)
            if found is not None:
                body.append(found)
    if entry is None or entry not in computations:
        raise InvalidArgument("this is no HLO module: it has no entry computation")
    return Module(computations, entry)


def _instruction(line: str) -> Instruction | None:
    start = _START.match(line)
    if start is None:
        return None
    at = start.end()
    is_tuple = line[at] == "("
    end = _closing(line, at) + 1 if is_tuple else _word(line, at)
    opening = line.find("(", end)
    if opening < 0:
        return None
    closing = _closing(line, opening)
    inside = line[opening + 1 : closing]
    return Instruction(
        name=start.group(2),
        opcode=line[end:opening].strip(),
        arrays=tuple(_arrays(line[at:end])),
        is_tuple=is_tuple,
        operands=tuple(_NAME.findall(inside)),
        text=line[closing + 1 :],
        is_root=start.group(1) is not None,
        inside=inside if len(inside) < 16 else "",
    )


def _word(line: str, at: int) -> int:
    """End of a type: the first space outside its braces."""
    end = line.find(" ", at)
    return len(line) if end < 0 else end


def _closing(line: str, opening: int) -> int:
    """Position of the parenthesis that closes the one at `opening`; strings in between may hold any."""
    depth, quoted, at = 0, False, opening
    while at < len(line):
        c = line[at]
        if quoted:
            if c == "\\":
                at += 1
            elif c == '"':
                quoted = False
        elif c == '"':
            quoted = True
        elif c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return len(line) - 1


def _arrays(text: str) -> Iterator[Array]:
    for match in _ARRAY.finditer(text):
        dtype, dims, layout = match.groups()
        if dtype is None:
            yield Array("token", (), 0)
        elif dtype in _WIDTH_BITS or dtype.startswith("f8"):
            shape = tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)
            bits = _WIDTH_BITS.get(dtype, 8)
            yield Array(dtype, shape, -(-math.prod(_padded(shape, layout or "")) * bits // 8))


def _padded(dims: tuple[int, ...], layout: str) -> list[int]:
    """The dimensions as laid out: `{1,0:T(8,128)}` pads the most minor one to 128 and the next to 8."""
    padded = list(dims)
    tile = _TILE.search(layout)
    if tile is None or not dims:
        return padded
    order = [int(d) for d in re.findall(r"\d+", layout.partition(":")[0])]
    sizes = [int(t) for t in tile.group(1).split(",") if t.isdigit()]
    for dim, size in zip(order, reversed(sizes), strict=False):
        padded[dim] = -(-padded[dim] // size) * size
    return padded
