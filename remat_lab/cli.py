"""The command line. JAX and the solvers are imported only by the commands that need them."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from remat_lab.progress import shown

if TYPE_CHECKING:
    from remat_lab.models import Model
    from solvers.errors import InfeasibleBudget

app = typer.Typer(
    name="remat-lab",
    help="Plans what a JAX training step keeps, frees and recomputes under a memory budget, and measures the result.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

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
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads of the solver; all cores by default.")]


@app.callback()
def options(
    context: typer.Context,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the whole traceback of an error.")] = False,
) -> None:
    """Options that come before the command."""
    context.obj = {"traceback": traceback}


@app.command()
def compare(
    context: typer.Context,
    model: ModelName = "resnet",
    depth: Depth = None,
    batch: Batch = None,
    settings: Settings = None,
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", "-b", metavar="BUDGET", help=f"{BUDGET_HELP} Repeatable; {', '.join(BUDGETS)} by default."),
    ] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only these rows, and plain JAX; repeatable.")
    ] = None,
    solver: SolverName = "auto",
    rounds: Annotated[int, typer.Option(min=0, metavar="N", help="How often each row is timed; 0 for no timings.")] = 11,
    time_limit: TimeLimit = 20.0,
    seed: Seed = 0,
    workers: Workers = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write compare.json and compare.png.")] = Path(),
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here instead.")] = None,
    picture_path: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw the picture (.png, .svg) here instead.")
    ] = None,
) -> None:
    """Set rematerialization strategies side by side on one model: memory, work, time, exactness."""
    with _friendly(context):
        from remat_lab.plots import check_format

        json_path, picture_path = json_path or out / "compare.json", picture_path or out / "compare.png"
        check_format(picture_path)  # before the work, not after it
        made = _build(model, depth, batch, settings)
        with shown(made.name) as report:
            from remat_lab.compare import compare as run

            result = run(
                made.loss,
                *made.args,
                blocks=made.blocks,
                budgets=budget or BUDGETS,
                strategies=strategy,
                solver=solver,
                argnums=made.argnums,
                has_aux=made.has_aux,
                real_args=made.materialise(seed) if made.materialise is not None else None,
                seed=seed,
                rounds=rounds,
                time_limit=time_limit,
                workers=workers,
                strict=budget is not None and len(budget) == 1,
                title=made.name,
                progress=report,
            )
        _show(result.to_json())
        result.save(json_path)
        result.plot(picture_path)
        typer.echo(f"wrote {json_path} and {picture_path}", err=True)


@app.command()
def plan(
    context: typer.Context,
    budget: Annotated[str, typer.Option("--budget", "-b", metavar="BUDGET", help=BUDGET_HELP)],
    model: ModelName = "resnet",
    depth: Depth = None,
    batch: Batch = None,
    settings: Settings = None,
    solver: SolverName = "auto",
    time_limit: TimeLimit = 20.0,
    seed: Seed = 0,
    workers: Workers = None,
) -> None:
    """Plan one model under one budget, and say what the plan keeps, recomputes and costs."""
    with _friendly(context):
        made = _build(model, depth, batch, settings)
        with shown(made.name) as report:
            from remat_lab.api import plan as run
            from remat_lab.summary import describe_progress

            report("trace", 0, 1)
            result = run(
                made.loss,
                *made.args,
                budget=budget,
                solver=solver,
                argnums=made.argnums,
                has_aux=made.has_aux,
                time_limit=time_limit,
                seed=seed,
                workers=workers,
                progress=lambda now: report(describe_progress("solve", now), 0, 1),
            )
        typer.echo(result.summary())


@app.command()
def solve(
    context: typer.Context,
    graph: Annotated[Path, typer.Argument(help="A graph as JSON: nodes with name, cost, size and deps.")],
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", metavar="BUDGET", help=f"{BUDGET_HELP} No limit by default.")
    ] = None,
    solver: SolverName = "auto",
    time_limit: TimeLimit = 60.0,
    seed: Seed = 0,
    workers: Workers = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the solution with its schedule as JSON.")] = False,
) -> None:
    """Plan a graph from a file; it need not come from JAX."""
    with _friendly(context):
        from remat_lab.budget import parse_budget
        from remat_lab.errors import InvalidArgument
        from remat_lab.summary import describe_progress, solution_as_json, solution_as_text
        from solvers import Graph, Schedule, available, simulate
        from solvers import solve as run

        if solver not in available():
            raise InvalidArgument(f"there is no solver {solver!r}: choose one of {', '.join(available())}")
        problem = Graph.load(graph)
        keep_all = simulate(problem, Schedule.from_order(problem, problem.steps)).peak
        with shown(graph.name) as report:
            solution = run(
                problem,
                None if budget is None else parse_budget(budget, keep_all),
                solver,
                time_limit=time_limit,
                seed=seed,
                workers=workers,
                progress=lambda now: report(describe_progress("solve", now), 0, 1),
            )
        if as_json:
            typer.echo(json.dumps(solution_as_json(problem, solution, keep_all), indent=1))
        else:
            typer.echo(solution_as_text(problem, solution, keep_all))


@app.command()
def table(context: typer.Context, path: Annotated[Path, typer.Argument(help="A file that `compare` wrote.")]) -> None:
    """Print the table of an earlier comparison."""
    with _friendly(context):
        from remat_lab.report import read_comparison

        _show(read_comparison(path))


@app.command()
def plot(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="A file that `compare` wrote.")],
    picture_path: Annotated[Path, typer.Option("--picture", metavar="FILE", help=".png or .svg.")] = Path("compare.png"),
) -> None:
    """Draw the picture of an earlier comparison."""
    with _friendly(context):
        from remat_lab.plots import picture
        from remat_lab.report import read_comparison

        picture(read_comparison(path), picture_path)
        typer.echo(f"wrote {picture_path}", err=True)


def main() -> None:
    """Entry point of the installed command."""
    app()


def _build(model: str, depth: int | None, batch: int | None, settings: list[str] | None) -> Model:
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


def _show(data: dict[str, Any]) -> None:
    """The table as wide as the terminal, or plain and wide enough in a file."""
    from rich.console import Console

    from remat_lab.report import as_text, print_comparison

    if sys.stdout.isatty():
        print_comparison(data, Console())
    else:
        typer.echo(as_text(data))


@contextmanager
def _friendly(context: typer.Context) -> Iterator[None]:
    """Turns errors into a line or two on the error stream: exit code 2 for what the user can mend, 1 for the rest."""
    from remat_lab.errors import RematLabError
    from solvers.errors import InfeasibleBudget, SolverError

    if context.obj and context.obj.get("traceback"):
        yield
        return
    try:
        yield
    except typer.Exit:
        raise
    except InfeasibleBudget as error:
        _fail(2, *_explain(error))
    except (SolverError, RematLabError) as error:
        _fail(2, str(error))
    except OSError as error:
        _fail(2, f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except KeyboardInterrupt:
        _fail(130, "interrupted")
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        _fail(1, f"{type(error).__name__}: {first}", "For the whole traceback: remat-lab --traceback ...")


def _explain(error: InfeasibleBudget) -> tuple[str, str]:
    """What is wrong, and what to do: one line each."""
    from remat_lab.units import near, size, sufficient_size

    proof = "proven impossible" if error.proven else "no plan found"
    return (
        f"a budget of {size(error.budget)} is too small ({proof}, relative to {error.relative_to}): the smallest known to work "
        f"is {size(error.minimum)}, and none below {size(error.lower_bound)} can, because of {near(error.name)}",
        f"Ask for at least --budget {sufficient_size(error.minimum)}, or make the problem smaller (a smaller batch, say).",
    )


def _fail(code: int, *lines: str) -> NoReturn:
    for position, line in enumerate(lines):
        typer.echo(line if position else f"remat-lab: {line}", err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
