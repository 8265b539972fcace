"""The strategies that `compare` sets side by side, by the names that its rows have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from remat_lab.errors import InvalidArgument

Budget = int | float | str
Family = Literal["plain", "policy", "heuristic", "optimal"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to decide what a training step keeps.

    Attributes:
        name: the row's name.
        family: plain JAX, a `jax.checkpoint` per block, a planned heuristic, or the planned optimum under a budget.
        policy: name in `jax.checkpoint_policies`, for the family `policy`; None recomputes whole blocks.
        solver: name in the registry of `solvers.solve`, for the planned families.
        budget: budget given to the solver.
    """

    name: str
    family: Family
    policy: str | None = None
    solver: str | None = None
    budget: Budget | None = None


FIXED = {
    strategy.name: strategy
    for strategy in (
        Strategy("plain", "plain"),
        Strategy("nn_remat", "policy"),
        Strategy("dots_saveable", "policy", policy="dots_saveable"),
        Strategy("dots_with_no_batch_dims_saveable", "policy", policy="dots_with_no_batch_dims_saveable"),
        Strategy("keep_all", "heuristic", solver="keep_all"),
        Strategy("sqrt", "heuristic", solver="sqrt"),
        Strategy("chen", "heuristic", solver="chen"),
        Strategy("recursive", "heuristic", solver="recursive"),
    )
}


def select(wanted: Iterable[str] | None, budgets: Iterable[Budget], solver: str = "auto") -> list[Strategy]:
    """The strategies to compare, in the order of the table; plain JAX is always one, since the others are relative to it.

    Args:
        wanted: names of `FIXED`, "optimal" for the optimal plan at every budget, or "optimal@0.4" for one more budget; None
            for all.
        budgets: budgets of the optimal plans.
        solver: the solver that makes the optimal plans.

    Raises:
        InvalidArgument: naming what is known.
    """
    budgets = list(budgets)
    if wanted is None:
        wanted = [*FIXED, "optimal"]
    chosen = {"plain": FIXED["plain"]}
    for name in wanted:
        if name in FIXED:
            chosen[name] = FIXED[name]
        elif name == "optimal":
            chosen.update({f"optimal@{b}": Strategy(f"optimal@{b}", "optimal", solver=solver, budget=b) for b in budgets})
        elif name.startswith("optimal@") and name != "optimal@":
            chosen[name] = Strategy(name, "optimal", solver=solver, budget=name.removeprefix("optimal@"))
        else:
            raise InvalidArgument(f"no strategy named {name!r}: known are {', '.join(FIXED)}, optimal and optimal@BUDGET")
    order = {name: position for position, name in enumerate(FIXED)}
    return sorted(chosen.values(), key=lambda strategy: order.get(strategy.name, len(order)))


def block_transform(policy: str | None) -> Callable[..., Any]:
    """What `blocks(transform)` wraps each block with.

    Args:
        policy: name in `jax.checkpoint_policies`; None recomputes everything inside a block.

    Returns:
        A function of a block and further options (`static_argnums`, say): a `flax.linen` module class goes through
        `flax.linen.remat`, anything else through `jax.checkpoint`.
    """
    import jax

    chosen = None if policy is None else getattr(jax.checkpoint_policies, policy)

    def transform(block: Any, **options: Any) -> Any:
        linen = sys.modules.get("flax.linen")  # a linen block cannot exist before its module is imported
        if linen is not None and isinstance(block, type) and issubclass(block, linen.Module):
            return linen.remat(block, policy=chosen, **options)
        return jax.checkpoint(block, policy=chosen, **options)

    return transform
