"""`remat` inside `haiku.transform`: parameters, state and keys drawn inside become arguments and results, as for `hk.remat`."""

from __future__ import annotations

from typing import Any

import haiku
from haiku._src import base, stateful


def inside_transform() -> bool:
    """Whether Haiku is transforming a function now."""
    return bool(base.inside_transform())


def call(decorated: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a decorated function whose Haiku state is passed in and out."""

    def remat(stateful_fun: Any) -> Any:
        return decorated.of(stateful_fun, plan=not haiku.running_init()).plain  # as for linen

    return stateful.thread_hk_state_in_kwargs(remat)(decorated.fun)(*args, **kwargs)
