"""Commands of the command line about a model: plans, comparisons and frontiers of memory and work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from remat_lab.cli_common import (
    BUDGET_HELP,
    BUDGETS,
    Batch,
    Costs,
    Depth,
    ModelName,
    Seed,
    Settings,
    SolverName,
    Targets,
    TimeLimit,
    Workers,
    build,
    fail,
    friendly,
    show,
)
from remat_lab.progress import shown, shown_with_rows


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
    costs: Costs = "roofline",
    rounds: Annotated[int, typer.Option(min=0, metavar="N", help="How often each row is timed; 0 for no timings.")] = 11,
    time_limit: TimeLimit = 20.0,
    seed: Seed = 0,
    workers: Workers = None,
    target: Targets = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write compare.json and compare.png.")] = Path(),
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here instead.")] = None,
    picture_path: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw the picture (.png, .svg) here instead.")
    ] = None,
) -> None:
    """Set rematerialization strategies side by side on one model: memory, work, time, exactness."""
    with friendly(context):
        from remat_lab.comparison import Interrupted
        from remat_lab.plots import check_format

        json_path, picture_path = json_path or out / "compare.json", picture_path or out / "compare.png"
        check_format(picture_path)  # before the work, not after it
        made = build(model, depth, batch, settings)
        try:
            with shown_with_rows(made.name, timed=rounds > 0) as screen:
                from remat_lab.compare import compare as run

                result = run(
                    made.loss,
                    *made.args,
                    blocks=made.blocks,
                    budgets=budget or BUDGETS,
                    strategies=strategy,
                    solver=solver,
                    costs=costs,
                    argnums=made.argnums,
                    has_aux=made.has_aux,
                    real_args=made.materialise(seed) if made.materialise is not None else None,
                    seed=seed,
                    rounds=rounds,
                    time_limit=time_limit,
                    workers=workers,
                    strict=budget is not None and len(budget) == 1,
                    targets=target or (),
                    title=made.name,
                    progress=screen.report,
                    on_row=screen.row,
                )
        except Interrupted as stopped:
            partial = json_path.with_suffix(f".interrupted{json_path.suffix}")  # what an earlier run wrote stays
            show(stopped.comparison.to_json())
            stopped.comparison.save(partial)
            fail(130, f"interrupted; the rows so far are in {partial}")
        show(result.to_json())
        result.save(json_path)
        result.plot(picture_path)
        typer.echo(f"wrote {json_path} and {picture_path}", err=True)


def plan(
    context: typer.Context,
    budget: Annotated[str | None, typer.Option("--budget", "-b", metavar="BUDGET", help=BUDGET_HELP)] = None,
    device_memory: Annotated[
        str | None, typer.Option(metavar="BYTES", help='Of the whole device, "16GB": the budget is what the rest leaves of it.')
    ] = None,
    reserved: Annotated[str, typer.Option(metavar="BYTES", help="What lies on the device beside the step.")] = "0",
    check: Annotated[
        str, typer.Option(metavar="HOW", help="compiled: the budget holds as compiled; planned: as predicted.")
    ] = ("compiled"),
    model: ModelName = "resnet",
    depth: Depth = None,
    batch: Batch = None,
    settings: Settings = None,
    solver: SolverName = "auto",
    costs: Costs = "roofline",
    time_limit: TimeLimit = 20.0,
    seed: Seed = 0,
    workers: Workers = None,
    target: Targets = None,
) -> None:
    """Plan one model under one budget, and say what the plan keeps, recomputes and costs."""
    with friendly(context):
        from remat_lab.errors import InvalidArgument

        if budget is None and device_memory is None:
            raise InvalidArgument("plan needs a limit: --budget for temporaries, or --device-memory for everything")
        made = build(model, depth, batch, settings)
        with shown(made.name) as report:
            from remat_lab.api import plan as run
            from remat_lab.summary import describe_progress
            from remat_lab.target_table import describe_compiled

            lines: list[str] = []
            places: list[str | None] = [*target] if target else [None]
            for name in places:
                report("trace" if name is None else f"trace and compile for {name}", 0, 1)
                result = run(
                    made.loss,
                    *made.args,
                    budget=budget,
                    device_memory=device_memory,
                    reserved=0 if reserved == "0" else reserved,
                    check=check,
                    solver=solver,
                    costs=costs,
                    argnums=made.argnums,
                    has_aux=made.has_aux,
                    target=name,
                    time_limit=time_limit,
                    seed=seed,
                    workers=workers,
                    progress=lambda now: report(describe_progress("solve", now), 0, 1),
                )
                lines += [result.summary(), *([] if name is None else [describe_compiled(result)])]
        typer.echo("\n".join(lines))


def frontier(
    context: typer.Context,
    model: ModelName = "resnet",
    depth: Depth = None,
    batch: Batch = None,
    settings: Settings = None,
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", "-b", metavar="BUDGET", help=f"{BUDGET_HELP} Repeatable; --points of them by default."),
    ] = None,
    points: Annotated[int, typer.Option(min=2, metavar="N", help="Budgets from the smallest possible to keeping all.")] = 8,
    solver: SolverName = "auto",
    costs: Costs = "roofline",
    rounds: Annotated[int, typer.Option(min=0, metavar="N", help="How often each row is timed; 0: compile only.")] = 0,
    time_limit: TimeLimit = 10.0,
    seed: Seed = 0,
    workers: Workers = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write frontier.json and frontier.png.")] = Path(),
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here instead.")] = None,
    picture_path: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw the picture (.png, .svg) here instead.")
    ] = None,
) -> None:
    """Trade memory for work: plans at many budgets as compiled, plain JAX and its policies beside them."""
    with friendly(context):
        from remat_lab.plots import check_format

        json_path, picture_path = json_path or out / "frontier.json", picture_path or out / "frontier.png"
        check_format(picture_path)  # before the work, not after it
        made = build(model, depth, batch, settings)
        with shown(made.name) as report:
            from remat_lab.frontier import frontier as run

            result = run(
                made.loss,
                *made.args,
                blocks=made.blocks,
                budgets=budget,
                points=points,
                solver=solver,
                costs=costs,
                argnums=made.argnums,
                has_aux=made.has_aux,
                real_args=made.materialise(seed) if rounds and made.materialise is not None else None,
                rounds=rounds,
                seed=seed,
                time_limit=time_limit,
                workers=workers,
                title=made.name,
                progress=report,
            )
        show(result.to_json())
        result.save(json_path)
        result.plot(picture_path)
        typer.echo(f"wrote {json_path} and {picture_path}", err=True)


COMMANDS: tuple[Callable[..., None], ...] = (compare, plan, frontier)
