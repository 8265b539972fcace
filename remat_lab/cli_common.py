"""What the commands of the command line share: options, the way from a name to a model, tables, and errors in plain words."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from remat_lab.models import Model
    from solvers.errors import InfeasibleBudget

BUDGETS = ("0.7", "0.5", "0.3")
BUDGET_HELP = 'Bytes with a unit ("600MiB"), or a fraction of the keep-all peak ("0.5").'
SOLVE_HELP = f"{BUDGET_HELP} No limit by default."
ModelName = Annotated[
    str, typer.Option("--model", "-m", metavar="NAME", help="A built-in model, or module:function for your own factory.")
]
Depth = Annotated[int | None, typer.Option(metavar="N", help="The model's option of that name.")]
Batch = Annotated[int | None, typer.Option(metavar="N", help="The model's option of that name.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other option of the model; repeatable.")
]
SolverName = Annotated[str, typer.Option(metavar="NAME", help="Solver of the plan; auto chooses.")]
TimeLimit = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="For each plan.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the arrays and of the solver.")]
Costs = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What recomputation is charged: roofline, measured (each step timed here, once for all plans) or flops.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="A device to plan and compile for, which need not be here (see remat-lab targets), or a .toml file; repeatable.",
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads of the solver; all cores by default.")]


def build(model: str, depth: int | None, batch: int | None, settings: list[str] | None) -> Model:
    """The model with the options that were given, named after both."""
    from dataclasses import replace

    from remat_lab.errors import InvalidArgument
    from remat_lab.models import build

    given: dict[str, Any] = {key: value for key, value in (("depth", depth), ("batch", batch)) if value is not None}
    for setting in settings or ():
        key, separator, text = setting.partition("=")
        if not separator or not key.strip().isidentifier():
            raise InvalidArgument(f"--set {setting!r} is not of the form key=value")
        try:
            given[key.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            given[key.strip()] = text
    made = build(model, given)
    return replace(made, name=" ".join([model, *(f"{key}={value}" for key, value in given.items())]))


def show(data: dict[str, Any]) -> None:
    """The table as wide as the terminal, or plain and wide enough in a file."""
    from rich.console import Console

    from remat_lab.report import as_text, print_comparison

    if sys.stdout.isatty():
        print_comparison(data, Console())
    else:
        typer.echo(as_text(data))


def width() -> int:
    """Columns of the terminal, or enough for any table in a file."""
    from rich.console import Console

    from remat_lab.report import WIDE

    return Console().width if sys.stdout.isatty() else WIDE


@contextmanager
def friendly(context: typer.Context) -> Iterator[None]:
    """Turns errors into a line or two on the error stream: exit code 2 for what the user can mend, 1 for the rest."""
    from remat_lab.errors import RematLabError
    from solvers.errors import InfeasibleBudget

    if context.obj and context.obj.get("traceback"):
        yield
        return
    try:
        yield
    except typer.Exit:
        raise
    except InfeasibleBudget as error:
        fail(2, *_explain(error))
    except RematLabError as error:
        fail(2, str(error))
    except OSError as error:
        fail(2, f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except KeyboardInterrupt:
        fail(130, "interrupted")
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        fail(1, f"{type(error).__name__}: {first}", "For the whole traceback: remat-lab --traceback ...")


def _explain(error: InfeasibleBudget) -> tuple[str, str]:
    """What is wrong, and what to do: one line each."""
    from remat_lab.units import near, size, sufficient_size

    return near(error.reason(size)), f"{error.advice(lambda count: f'--budget {sufficient_size(count)}')}."


def fail(code: int, *lines: str) -> NoReturn:
    """Ends the command with lines on the error stream."""
    for position, line in enumerate(lines):
        typer.echo(line if position else f"remat-lab: {line}", err=True)
    raise typer.Exit(code)
