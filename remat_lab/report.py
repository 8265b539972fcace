"""The results as JSON files and as tables. Everything here reads only the JSON that `Comparison.to_json` makes."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from remat_lab.errors import InvalidArgument
from remat_lab.units import NOTHING, difference, duration, megabytes, percent, seconds, size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Json = Mapping[str, Any]
PENDING = "..."
WIDE = 150  # columns of text that goes to a file; the table is shown in two parts where it does not fit


class Column(NamedTuple):
    """A column of the table: its two-line heading, which part of a split table it is in, and how a row fills it."""

    heading: str
    part: str
    cell: Callable[[Json], str]


def write_json(data: Any, path: str | Path) -> None:
    """Writes JSON whole or not at all: a reader never sees half a file, and an interruption leaves the old one.

    Raises:
        OSError: if the folder cannot be written to.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_comparison(path: str | Path) -> dict[str, Any]:
    """Reads what `Comparison.save` wrote.

    Raises:
        InvalidArgument: if the file cannot be read or does not hold a comparison.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(f"{path} is not a JSON file: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list):
        raise InvalidArgument(f'{path} does not hold a comparison: an object with a list "rows"')
    return data


def as_text(data: Json, width: int = WIDE) -> str:
    """The table and its notes as plain text of at most `width` columns."""
    from rich.console import Console

    file = io.StringIO()
    print_comparison(data, Console(file=file, width=width, color_system=None))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def print_comparison(data: Json, console: Console) -> None:
    """Prints one wide table, or several where the console is narrow, and what a reader needs to know beside it."""
    from rich.text import Text

    columns = _columns(data)
    console.print(Text.assemble((data["title"], "bold"), f"  {_setting(data)}"))
    common = [column for column in columns if column.part == "all"]
    memory, work = ([column for column in columns if column.part == part] for part in ("memory", "work"))
    if _fits(_table(data, columns), console):
        tables = [_table(data, columns)]
    else:
        tables = [table for part in (memory, work) for table in _fitting(data, common, part, console)]
    for table in tables:
        console.print(table, "")
    for note in _notes(data):
        console.print(note, highlight=False, markup=False, style="dim")


def _fitting(data: Json, common: list[Column], part: list[Column], console: Console) -> list[Table]:
    """A table of the common columns and a part's, or as many with fewer of these each as it takes to fit."""
    table, half = _table(data, [*common, *part]), (len(part) + 1) // 2
    if len(part) == 1 or _fits(table, console):
        return [table]
    return [*_fitting(data, common, part[:half], console), *_fitting(data, common, part[half:], console)]


def _fits(table: Table, console: Console) -> bool:
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(max_width=1000), table).maximum <= console.width


def rows_so_far(rows: Sequence[Json], timed: bool) -> Table:
    """A table of rows in the making, narrower than the final one.

    Args:
        rows: what is known of them.
        timed: whether those that run will be timed.
    """

    def step_time(row: Json) -> str:
        ratio = row["step_time_ratio"]
        return PENDING if timed and ratio is None and row["max_grad_difference"] is not None else _ratio(ratio)

    wanted = ("target", "strategy", "planned peak", "compiled temp", "FLOPs compiled", "gradient difference", "status")
    data = {"rows": rows}
    columns = [column for column in _columns(data) if " ".join(column.heading.split()) in wanted]
    columns.insert(-1, Column("step\ntime", "work", step_time))
    return _table(data, columns)


def row_as_line(row: Json) -> str:
    """What is known of a row in the making, on one line."""
    name = row["strategy"] if row["target"] is None else f"{row['strategy']} on {row['target']}"
    figures = (
        ("planned", row["planned_peak_bytes"], size),
        ("compiled", row["compiled_temp_bytes"], size),
        ("FLOPs", row["compiled_extra_flops_ratio"], percent),
        ("gradients differ by", row["max_grad_difference"], lambda x: difference(x, row["bitwise_equal"])),
    )
    shown = [f"{label} {show(value)}" for label, value, show in figures if value is not None]
    return f"{name}: {', '.join([*shown, *filter(None, (row['status'], row['reason']))])}"


def _columns(data: Json) -> list[Column]:
    def field(key: str, show: Callable[[Any], str]) -> Callable[[Json], str]:
        return lambda row: show(row.get(key))

    schedulers = data.get("settings", {}).get("schedulers", {})

    def under_the_other(row: Json) -> str:
        temps = [
            row["compiled_temp_by_scheduler"].get(name) for name in schedulers if schedulers[name] != row["compiler_options"]
        ]
        return megabytes(temps[0]) if temps else NOTHING

    other = [Column("other\nsched.", "memory", under_the_other)] if len(schedulers) == 2 else []
    kernels = [
        Column("\nkernels", "work", field("kernels", lambda n: NOTHING if n is None else f"{n:,}")),
        Column("kernel\nbytes", "work", field("kernel_bytes", megabytes)),
    ]
    if all(row.get("kernel_bytes") is None for row in data["rows"]):
        kernels = []
    return [
        *([Column("\ntarget", "all", field("target", str))] if any(row.get("target") for row in data["rows"]) else []),
        Column("\nstrategy", "all", lambda row: _broken(row["strategy"])),
        Column("planned\npeak", "memory", field("planned_peak_bytes", megabytes)),
        Column("compiled\ntemp", "memory", field("compiled_temp_bytes", megabytes)),
        *other,
        Column("\nargs", "memory", field("argument_bytes", megabytes)),
        Column("\nouts", "memory", field("output_bytes", megabytes)),
        Column("FLOPs\nplanned", "work", field("planned_extra_flops_ratio", percent)),
        Column("FLOPs\ncompiled", "work", field("compiled_extra_flops_ratio", percent)),
        *kernels,
        Column("step\ntime", "work", field("step_time_ratio", _ratio)),
        Column("gradient\ndifference", "work", lambda row: difference(row["max_grad_difference"], row["bitwise_equal"])),
        Column("\nstatus", "work", field("status", lambda status: status or NOTHING)),
        Column("cost\nplanned", "work", field("planned_extra_cost_ratio", percent)),
        Column("lower\nbound", "work", field("planned_bound_ratio", percent)),
        Column("plan\ns", "work", field("plan_seconds", seconds)),
        Column("compile\ns", "work", field("compile_seconds", seconds)),
    ]


def _table(data: Json, columns: list[Column]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    for column in columns:
        on_left = column.heading.strip() in ("target", "strategy", "status")
        table.add_column(column.heading, justify="left" if on_left else "right", no_wrap=True)
    family = None
    for row in data["rows"]:
        if family is not None and (row.get("target"), row["family"]) != family:
            table.add_section()
        family = (row.get("target"), row["family"])
        table.add_row(*(column.cell(row) for column in columns), style=_STYLES.get(row["status"]))
    return table


_STYLES = {"absent": "dim", "infeasible": "yellow", "failed": "red"}


def _broken(name: str, longest: int = 20) -> str:
    """A long name on two lines, broken after an underscore."""
    if len(name) <= longest:
        return name
    at = name.rfind("_", 0, longest) + 1
    return f"{name[:at]}\n  {name[at:]}" if at else name


def _ratio(ratio: float | None) -> str:
    return percent(ratio, sign=False, digits=0)


def _setting(data: Json) -> str:
    where = data["environment"]
    versions = where.get("versions", {})
    return f"on {where['cores']} cores of {where['processor']} ({where['backend']}), jax {versions.get('jax', '?')}"


def _notes(data: Json) -> list[RenderableType]:
    rows = data["rows"]
    notes = [
        "Memory in MB (10^6 bytes). FLOPs, cost and bound are extra: planned over computing all once, compiled over plain JAX.",
        "Cost is what the planner minimises (roofline seconds, unless told otherwise); the lower bound is on it.",
    ]
    plain = rows[0]
    if plain.get("step_seconds") is not None:
        rounds = data["settings"]["rounds"]
        notes.append(
            f"Step time relative to plain JAX ({duration(plain['step_seconds'])}): median of {rounds} rounds in alternation."
        )
        other = plain["step_time_ratio_by_scheduler"].items()
        notes += [
            f"Plain JAX under the {name} scheduler takes {percent(x, sign=False, digits=0)} of that." for name, x in other
        ]
    notes.append("Gradient difference: largest absolute one from plain JAX under the same compiler options.")
    if any(row.get("kernel_bytes") is not None for row in rows):
        notes.append("Kernel bytes: what all kernels of the compiled program read and write, in MB.")
    options = {json.dumps(row["compiler_options"]): row["compiler_options"] for row in rows if row["compiler_options"]}
    if len(data["settings"].get("schedulers", {})) == 2:
        notes.append("Other sched.: temp of the same program under XLA's other CPU scheduler, for which it was not made.")
    for option in options.values():
        names = [row["strategy"] for row in rows if row["compiler_options"] == option]
        given = ", ".join(f"{key}={value}" for key, value in option.items())
        notes.append(f"Compiled with {given}: {', '.join(names)}.")
    return [*notes, *reasons(rows)]


def reasons(rows: Sequence[Json]) -> list[str]:
    """Why rows are absent, infeasible, failed or odd, a line each."""
    return [f"{row['strategy']}: {row['status'] or 'measured'}, {row['reason']}" for row in rows if row["reason"]]
