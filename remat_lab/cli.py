"""The command line. JAX and the solvers are imported only by the commands that need them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from remat_lab import cli_models, cli_results
from remat_lab.cli_common import (
    BUDGET_HELP,
    Batch,
    Depth,
    ModelName,
    Seed,
    Settings,
    SolverName,
    TimeLimit,
    Workers,
    build,
    friendly,
)
from remat_lab.progress import shown

app = typer.Typer(
    name="remat-lab",
    help="Plans what a JAX training step keeps, frees and recomputes under a memory budget, and measures the result.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    context: typer.Context,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the whole traceback of an error.")] = False,
) -> None:
    """Options that come before the command."""
    from remat_lab.quiet import quiet_without_devices

    quiet_without_devices()
    context.obj = {"traceback": traceback}


for command in cli_models.COMMANDS:
    app.command()(command)


@app.command()
def targets(context: typer.Context) -> None:
    """List the devices to plan and compile for: what can be used here, and why not the rest."""
    with friendly(context):
        from rich.console import Console

        from remat_lab.target_table import print_targets

        print_targets(Console() if sys.stdout.isatty() else Console(width=120))


@app.command()
def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the page as JSON.")] = False,
) -> None:
    """Check what is installed: versions, JAX's inside, the compiler, a tiny plan with its proofs, targets. 0 if all works."""
    with friendly(context):
        from remat_lab.doctor import examine

        with shown("doctor") as report:
            found = examine(report)
        typer.echo(json.dumps(found.to_json(), indent=1) if as_json else str(found))
        if not found.works:
            raise typer.Exit(1)


@app.command()
def audit(
    context: typer.Context,
    model: ModelName = "resnet",
    depth: Depth = None,
    batch: Batch = None,
    settings: Settings = None,
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", metavar="BUDGET", help=f"{BUDGET_HELP} Without one everything is kept.")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(metavar="NAME", help='Count the state of this optax optimizer too ("adam").')
    ] = None,
    solver: SolverName = "auto",
    time_limit: TimeLimit = 20.0,
    seed: Seed = 0,
    workers: Workers = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page here too: .json, .md, or text otherwise.")
    ] = None,
) -> None:
    """Answer seven questions about a model's training memory: what, how long, at what price, and whether it is still right."""
    with friendly(context):
        from remat_lab.errors import InvalidArgument

        reserved: object = 0
        if optimizer is not None:
            import optax

            if not callable(getattr(optax, optimizer, None)):
                raise InvalidArgument(f"optax has no optimizer {optimizer!r}: adam, sgd, adafactor and so on")
            reserved = getattr(optax, optimizer)(1e-3)
        made = build(model, depth, batch, settings)
        with shown(made.name) as report:
            from remat_lab.api import plan as run
            from remat_lab.audit import audit as check
            from remat_lab.summary import describe_progress

            report("plan", 0, 1)
            planned = run(
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
            report("audit", 0, 1)
            real = made.materialise(seed) if made.materialise is not None else None
            found = check(made.loss, *made.args, plan=planned, reserved=reserved, real_args=real, seed=seed)
        typer.echo(str(found))
        if out is not None:
            found.save(out)
            typer.echo(f"wrote {out}", err=True)


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
    with friendly(context):
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


for later in cli_results.COMMANDS:
    app.command()(later)


def main() -> None:
    """Entry point of the installed command."""
    app()


if __name__ == "__main__":
    main()
