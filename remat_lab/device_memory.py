"""The whole of a device's memory: what is there beside the temporaries that a budget is about, class by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from remat_lab.budget import parse_budget
from remat_lab.call import Call
from remat_lab.errors import InvalidArgument
from remat_lab.fuse import Fused
from remat_lab.primitives import nbytes
from remat_lab.units import size
from solvers.errors import InvalidBudget

_ADDRESS_BYTES = 8  # per result of a program with several

Reserved = int | str | Any
"""Bytes, a string with a unit, a pytree of arrays or shapes, an optimizer with `init`, or a mapping from names to these."""


@dataclass(frozen=True, slots=True)
class MemoryClasses:
    """Bytes of a training step by what they are for.

    Attributes:
        parameters: the differentiated arguments.
        other_arguments: the rest: batch, statistics, keys.
        gradients: results of the shapes of the parameters.
        other_results: loss and aux, and the table of all results' addresses.
        reserved: what the step does not see: optimizer state and so on, by name.
        temporaries: everything between arguments and results; None while not planned.
    """

    parameters: int
    other_arguments: int
    gradients: int
    other_results: int
    reserved: Mapping[str, int]
    temporaries: int | None = None

    @property
    def fixed(self) -> int:
        """All but the temporaries."""
        step = self.parameters + self.other_arguments + self.gradients + self.other_results
        return step + sum(self.reserved.values())

    @property
    def total(self) -> int:
        """Everything."""
        return self.fixed + (self.temporaries or 0)

    def rows(self) -> list[tuple[str, int]]:
        """Names and bytes of the classes that there are, in the order in which people ask for them."""
        named = [
            ("parameters", self.parameters),
            ("other arguments", self.other_arguments),
            ("gradients", self.gradients),
            ("other results", self.other_results),
            *self.reserved.items(),
            *([] if self.temporaries is None else [("temporaries", self.temporaries)]),
        ]
        return [(name, count) for name, count in named if count]


def classify(fused: Fused, call: Call, reserved: Reserved = 0, temporaries: int | None = None) -> MemoryClasses:
    """The memory of a value-and-gradient step by class.

    Args:
        fused: the step.
        call: its arguments.
        reserved: what else lies on the device, see `reserved_bytes`.
        temporaries: bytes of the step's temporaries, if known.
    """
    traced = dict(zip(call.traced, fused.program.inputs, strict=True))
    sizes = fused.program.bytes
    parameters = sum(sizes[traced[leaf]] for leaf in call.differentiated)
    arguments = sum(sizes[value] for value in traced.values())
    outputs = fused.program.outputs
    results = sum(_result_bytes(fused, value) for value in outputs) + (_ADDRESS_BYTES * len(outputs) if len(outputs) > 1 else 0)
    return MemoryClasses(
        parameters=parameters,
        other_arguments=arguments - parameters,
        gradients=parameters,  # one per parameter, of its shape and type
        other_results=results - parameters,
        reserved=reserved_bytes(reserved, call),
        temporaries=temporaries,
    )


def _result_bytes(fused: Fused, value: Any) -> int:
    if isinstance(value, int):
        return fused.program.bytes[value]
    return nbytes(value.aval)


def reserved_bytes(reserved: Reserved, call: Call) -> dict[str, int]:
    """Bytes of what a step does not see, by name.

    Args:
        reserved: bytes, or a string with a unit; an optimizer (anything with `init`, as optax has it), whose state for the
            differentiated arguments is counted without being allocated; a pytree of arrays or shapes; or a mapping from names
            to any of these.
        call: the step's arguments.

    Raises:
        InvalidArgument: if it is none of these.

    Returns:
        Names and bytes; nothing for 0.
    """
    if isinstance(reserved, Mapping) and not _is_tree(reserved):
        return {str(name): _bytes(part, call, str(name)) for name, part in reserved.items()}
    name = "optimizer state" if hasattr(reserved, "init") or _is_tree(reserved) else "reserved"
    count = _bytes(reserved, call, name)
    return {name: count} if count else {}


def temp_budget(fused: Fused, call: Call, device_memory: int | str, reserved: Reserved) -> int:
    """What a device's memory leaves for temporaries.

    Args:
        fused: the step.
        call: its arguments.
        device_memory: bytes of the device, or a string with a unit.
        reserved: what else lies on it.

    Raises:
        InvalidBudget: if arguments, results and reserved memory alone take more than there is.
    """
    if isinstance(device_memory, float):
        raise InvalidBudget(f'device_memory={device_memory!r} is neither bytes (an int) nor a string with a unit ("16 GB")')
    whole = parse_budget(device_memory, 0)
    classes = classify(fused, call, reserved)
    left = whole - classes.fixed
    if left < 1:
        parts = ", ".join(f"{name} {size(count)}" for name, count in classes.rows())
        raise InvalidBudget(
            f"device_memory of {size(whole)} is less than what is there beside the temporaries: {parts}; "
            f"{size(classes.fixed)} in all. Recomputation cannot help "
            "here: make the batch or the model smaller, or shard it over more devices."
        )
    return left


def _is_tree(value: Any) -> bool:
    """Whether a value is a pytree of arrays or shapes, and of nothing else but numbers."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and not isinstance(value, int | str) and all(hasattr(leaf, "dtype") for leaf in leaves)


def _bytes(part: Any, call: Call, name: str) -> int:
    if isinstance(part, int | str) and not isinstance(part, bool):
        return 0 if part == 0 else parse_budget(part, 0)
    if hasattr(part, "init"):
        args, _ = call.abstract().rebuild(call.abstract().values)
        parameters = [args[n] for n in call.argnums]
        return _tree_bytes(jax.eval_shape(part.init, parameters[0] if len(parameters) == 1 else tuple(parameters)))
    if _is_tree(part):
        return _tree_bytes(part)
    raise InvalidArgument(
        f"reserved: {name} is {part!r}; give bytes, a string with a unit, an optimizer with init, or a pytree of arrays"
    )


def _tree_bytes(tree: Any) -> int:
    return sum(nbytes(leaf) for leaf in jax.tree.leaves(tree))
