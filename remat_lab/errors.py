"""Errors about a user's function, arguments or options. Solver errors live in `solvers.errors`, and so does the root of all."""

from __future__ import annotations

from solvers.errors import InvalidBudget, SolverError
from solvers.errors import RematLabError as RematLabError


class InvalidLoss(RematLabError, TypeError):
    """The function to plan is not a loss that can be differentiated: wrong output, no floating-point inputs."""


class InvalidArgument(RematLabError, ValueError):
    """An option or an argument has a value that cannot be used."""


class PlanMismatch(RematLabError, ValueError):
    """A plan is used with other shapes, dtypes, static values or another program than it was made for."""


class UnknownRow(RematLabError, KeyError):
    """A comparison has no row of that name."""


class UnsupportedJax(RematLabError, NotImplementedError):
    """A feature needs something of JAX's inside that the installed JAX does not have."""


class InvalidPlanFile(RematLabError, ValueError):
    """A file that should hold a plan cannot be read, is damaged, or was written by another version."""


class UnsupportedEffect(RematLabError, NotImplementedError):
    """A function to recompute does something that must happen exactly once, such as a callback with side effects."""


class RematLabWarning(UserWarning):
    """Base class of every warning given by `remat_lab` itself."""


class UnknownPrimitiveWarning(RematLabWarning):
    """There is no rule for the cost of a primitive; the bytes that it reads and writes are charged. Given once for each."""


class ProfileWarning(RematLabWarning):
    """A step could not be timed alone, or a measurement on disk could not be read or written."""


class TargetUnavailable(RematLabError, RuntimeError):
    """Nothing can be compiled for a device here: the device is not present, nor the compiler for it."""


def is_about_the_call(error: Exception) -> bool:
    """Whether an error is about the loss, its arguments or the options, and so the same for every budget and solver."""
    return isinstance(error, InvalidBudget) or (isinstance(error, RematLabError) and not isinstance(error, SolverError))
