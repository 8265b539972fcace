"""Equality of two results, leaf by leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from remat_lab.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference between two trees of arrays.

    Attributes:
        absolute: largest absolute difference of two elements.
        relative: largest of each leaf's absolute difference divided by that leaf's largest magnitude.
        leaf: name of the leaf with the largest relative difference; empty if all are equal.
        bitwise: whether every leaf has the same bytes.
    """

    absolute: float
    relative: float
    leaf: str
    bitwise: bool

    def __str__(self) -> str:
        return "0 (bitwise)" if self.bitwise else f"{self.absolute:.3g} ({self.relative:.2g} relative, {self.leaf})"


def largest_difference(expected: Any, actual: Any) -> Difference:
    """Compares two results.

    Args:
        expected: tree of arrays.
        actual: tree of the same structure, shapes and dtypes.

    Raises:
        InvalidArgument: if structures, shapes or dtypes differ, naming the leaf.
    """
    trees = jax.tree.structure(expected), jax.tree.structure(actual)
    if str(trees[0]) != str(trees[1]):
        raise InvalidArgument(f"results differ in structure: {trees[0]} and {trees[1]}")
    absolute = relative = 0.0
    leaf, bitwise = "", True
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(actual), strict=True):
        name = jax.tree_util.keystr(path) or "value"
        x, y = _plain(a), _plain(b)
        if x.shape != y.shape or x.dtype != y.dtype:
            raise InvalidArgument(f"{name} is {x.dtype}{list(x.shape)} in one result and {y.dtype}{list(y.shape)} in the other")
        if x.tobytes() == y.tobytes():
            continue
        bitwise = False
        kind = np.complex128 if np.issubdtype(x.dtype, np.complexfloating) else np.float64
        x, y = x.astype(kind), y.astype(kind)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, np.abs(x - y))
        gap = np.where(np.isnan(gap), np.inf, gap)
        largest = float(gap.max(initial=0.0))
        scale = float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0))
        ratio = largest / scale if scale else (np.inf if largest else 0.0)
        absolute = max(absolute, largest)
        if ratio >= relative and largest:
            relative, leaf = ratio, name
    return Difference(absolute, relative, leaf, bitwise)


def _plain(x: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(getattr(x, "dtype", np.float64), jax.dtypes.extended):
        x = jax.random.key_data(x)
    return np.asarray(x)
