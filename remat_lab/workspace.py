"""Bytes that a step needs only while it runs, beyond its inputs and results."""

from __future__ import annotations

from typing import Any

from remat_lab import _compat
from remat_lab.primitives import nbytes


def convolution_copies(eqn: _compat.Equation) -> int:
    """Bytes of the transposed copies that XLA:CPU makes of a convolution's operands and result.

    Its kernels want batch, space, channels (input and output) and space, input channels, output channels (kernel). The
    gradient with respect to the kernel contracts over the batch, and so is a convolution in another layout.
    """
    numbers = eqn.params["dimension_numbers"]
    last = len(numbers.lhs_spec) - 1
    space = tuple(range(1, last))
    image, kernel = (0, last, *space), (last, last - 1, *range(last - 1))
    copies = 0
    for atom, spec, canonical in zip(
        (*eqn.invars, eqn.outvars[0]),
        (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec),
        (image, kernel, image),
        strict=True,
    ):
        if not _same_layout(atom.aval, tuple(spec), canonical):
            copies += nbytes(atom.aval)
    return copies


def _same_layout(aval: Any, spec: tuple[int, ...], canonical: tuple[int, ...]) -> bool:
    """Whether the dimensions longer than one lie in the canonical order, so that a transposition moves nothing."""
    order = sorted(range(len(spec)), key=lambda role: canonical[role])
    places = [spec[role] for role in order if aval.shape[spec[role]] > 1]
    return places == sorted(places)


def random_bits_copies(eqn: _compat.Equation) -> int:
    """Bytes of the counters and words that threefry2x32 works on, unrolled by XLA:CPU into loops over whole arrays."""
    return 3 * nbytes(eqn.outvars[0].aval)
