"""Settings that every test runs under, and the fixtures that they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from solvers.errors import InfeasibleBudget

# Through the environment, so that subprocesses inherit them and tests of `solvers` need not import JAX.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("MPLBACKEND", "agg")

hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(autouse=True, scope="session")
def init_unchecked() -> Iterator[Callable[..., None]]:
    """Fails where an error is made whose bound is above what the same accounting knows to work; users see no bound then.

    Yields the constructor as users have it.
    """
    plain = InfeasibleBudget.__init__

    def checked(self: InfeasibleBudget, **facts: Any) -> None:
        plain(self, **facts)
        assert not (self.refuted and self.bound_of == self.minimum_of), f"{self.refuted} is refuted: {self}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InfeasibleBudget, "__init__", checked)
        yield plain


CHECKOUT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` where JAX was not told to use one."""
    if {"cuda", "rocm", "gpu"} & set(os.environ["JAX_PLATFORMS"].split(",")):
        return
    skip = pytest.mark.skip(reason="needs a GPU: set JAX_PLATFORMS=cuda")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Root of the checkout that the tests belong to."""
    return CHECKOUT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public planning graphs beside the checkout; skips the test where there is none."""
    path = CHECKOUT.parent / "shared"
    if not path.is_dir():
        pytest.skip("no folder ../shared beside the checkout")
    return path
