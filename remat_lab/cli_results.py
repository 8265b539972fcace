"""Commands of the command line that measure in order to show: experiments, their tables and pictures, and the laboratory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat_lab.cli_common import Seed, friendly, show, width
from remat_lab.progress import shown


def experiment(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="An installed experiment; unknown names list them.")],
    preset: Annotated[str, typer.Option(metavar="NAME", help="smoke, cpu or gpu.")] = "smoke",
    target: Annotated[str | None, typer.Option(metavar="NAME", help="A device to plan and compile for.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Measure points that failed again.")] = False,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where NAME.jsonl and its pictures are.")] = Path(),
) -> None:
    """Measure what an experiment's file lacks, a line for each point; then print its table and draw its picture."""
    with friendly(context):
        from remat_lab.experiment import SUFFIXES, draw, find

        found, path = find(name), out / f"{name}.jsonl"
        with shown(name) as report:
            problems = found.run(path, preset=preset, target=target, retry=retry, report=report)
        typer.echo("\n".join(problems), err=True, nl=bool(problems))
        typer.echo(found.text(found.read(path)[0], width()))
        pictures = [path.with_suffix(suffix) for suffix in SUFFIXES]
        draw(found, path, pictures)
        typer.echo(f"wrote {path}, {' and '.join(map(str, pictures))}", err=True)


def table(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A file that `compare` wrote, or the name of an experiment.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where an experiment's NAME.jsonl is.")] = Path(),
) -> None:
    """Print the table of an earlier comparison or experiment, from its file alone."""
    with friendly(context):
        from remat_lab.experiment import find, is_comparison
        from remat_lab.report import read_comparison

        if is_comparison(source):
            show(read_comparison(source))
            return
        found = find(source)
        rows, problems = found.read(out / f"{source}.jsonl")
        typer.echo("\n".join(problems), err=True, nl=bool(problems))
        typer.echo(found.text(rows, width()))


def plot(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A file that `compare` wrote, or the name of an experiment.")],
    picture_path: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help=".png or .svg; compare.png, or NAME.svg and NAME.png by default."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where an experiment's NAME.jsonl is.")] = Path(),
) -> None:
    """Draw the picture of an earlier comparison or experiment, from its file alone."""
    with friendly(context):
        from remat_lab.experiment import SUFFIXES, draw, find, is_comparison
        from remat_lab.plots import picture
        from remat_lab.report import read_comparison

        if is_comparison(source):
            picture_path = picture_path or Path("compare.png")
            picture(read_comparison(source), picture_path)
            pictures = [picture_path]
        else:
            pictures = [picture_path] if picture_path else [out / f"{source}{suffix}" for suffix in SUFFIXES]
            problems = draw(find(source), out / f"{source}.jsonl", pictures)
            typer.echo("\n".join(problems), err=True, nl=bool(problems))
        typer.echo(f"wrote {' and '.join(map(str, pictures))}", err=True)


def lab(
    context: typer.Context,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="The chain: uniform, heterogeneous, conv-bn-relu or recurrent.")
    ] = "uniform",
    layers: Annotated[int, typer.Option(min=2, metavar="N", help="Its length.")] = 24,
    budget: Annotated[
        str | None,
        typer.Option("--budget", "-b", metavar="BUDGET", help="Of the optimal plan; what sqrt(n) takes, by default."),
    ] = None,
    seed: Seed = 0,
    picture_path: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw a picture (.png, .svg) as well.")
    ] = None,
    html_path: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a slider over the budget as well.")
    ] = None,
) -> None:
    """Watch strategies at work on a small chain in numpy: live bytes step by step, and four tests of each."""
    with friendly(context):
        from remat_lab.budget import parse_budget
        from remat_lab.lab_html import page_data, write_page
        from remat_lab.lab_layers import make_chain
        from remat_lab.lab_picture import picture
        from remat_lab.lab_run import passed, run_all
        from remat_lab.lab_text import report as as_text
        from remat_lab.plots import check_format
        from solvers.simulate import keep_all_peak

        if picture_path is not None:
            check_format(picture_path)
        chain = make_chain(profile, layers, seed)
        limit = None if budget is None else parse_budget(budget, keep_all_peak(chain.graph))
        trials = run_all(chain, limit)
        typer.echo(as_text(chain, trials))
        if picture_path is not None:
            picture(chain, trials, picture_path)
        if html_path is not None:
            with shown("lab") as report:
                write_page(page_data(chain, trials, report), html_path)
        written = [str(path) for path in (picture_path, html_path) if path is not None]
        if written:
            typer.echo(f"wrote {' and '.join(written)}", err=True)
        if not passed(trials):
            raise typer.Exit(1)


COMMANDS = (experiment, table, plot, lab)
