"""What every factory of this package returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from experiments.models.arguments import materialise

Loss = Callable[..., Any]
Transform = Callable[[Any], Any]  # from a linen Module class to another, such as nn.remat


@dataclass(frozen=True, slots=True)
class Model:
    """A loss and the shapes of its arguments; unpacks as `loss, args, blocks`.

    Attributes:
        loss: scalar function of `*args`, or with `has_aux` one that returns `(scalar, aux)`.
        args: pytrees of `jax.ShapeDtypeStruct`.
        blocks: rebuilds the loss with every block's Module class passed through a transform. Parameters keep their paths.
        has_aux: whether the loss returns more than its value, such as new batch statistics.
        argnums: which argument holds the parameters.
        classes: integer arguments are below this number.
    """

    loss: Loss
    args: tuple[Any, ...]
    blocks: Callable[[Transform], Loss]
    has_aux: bool = False
    argnums: int = 0
    classes: int = 2

    def __iter__(self) -> Iterator[Any]:
        return iter((self.loss, self.args, self.blocks))

    def materialise(self, seed: int = 0) -> tuple[Any, ...]:
        """Real arguments, the same for the same seed."""
        return materialise(self.args, seed, classes=self.classes)
