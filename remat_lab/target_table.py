"""The list of targets: what can be compiled or run here, why not the rest, and what each is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from remat_lab.targets import NAMES, Target
from remat_lab.units import NOTHING, size

if TYPE_CHECKING:
    from rich.console import Console

    from remat_lab.plans import Plan

_TERA, _GIGA = 1e12, 1e9


def status(target: Target) -> str:
    """In a few words whether the target can be used here."""
    if target.is_present:
        return "runs here"
    return "compiles here" if target.problem() is None else "not usable here"


def print_targets(console: Console) -> None:
    """Prints a table of all known targets, and what to do about those that cannot be used."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("target", "device", "memory", "GB/s", "TFLOP/s\nfloat32 dots", "TFLOP/s\nbfloat16", "here"):
        table.add_column(heading, justify="left" if heading in ("target", "device", "here") else "right", no_wrap=True)
    problems: dict[str, list[str]] = {}
    sources: list[str] = []
    for name in NAMES:
        target = Target.named(name)
        problem = target.problem()
        if problem is not None:
            problems.setdefault(problem, []).append(name)
        style = None if problem is None else "dim"
        facts = target.facts
        if facts is None:
            table.add_row(name, "this machine's processor", *[NOTHING] * 4, status(target), style=style)
            continue
        sources.append(f"{name}: {facts.source}")
        table.add_row(
            name,
            facts.device,
            size(facts.memory_bytes),
            f"{facts.bytes_per_second / _GIGA:,.0f}",
            f"{target.machine().flops_per_second / _TERA:,.0f}",
            f"{target.machine('bfloat16').flops_per_second / _TERA:,.0f}",
            status(target),
            style=style,
        )
    console.print(table, "")
    for problem, names in problems.items():
        console.print(f"{', '.join(names)}: {problem}", highlight=False, markup=False, soft_wrap=True)
    notes = "Facts from " + "; ".join(sources) + ". A .toml file describes others: see Target.named."
    for line in textwrap.wrap(notes, min(console.width, 120)):
        console.print(line, style="dim", highlight=False, markup=False)


def describe_compiled(plan: Plan) -> str:
    """One line for each scheduler of the plan's target: what the compiled step takes and moves."""
    lines: list[str] = []
    name = "cpu" if plan.target is None else plan.target.name
    for scheduler, compiled in plan.measure().items():
        traffic = compiled.traffic
        moved = "" if traffic is None else f"; {traffic.kernels:,} kernels move {size(traffic.bytes)}"
        which = "" if scheduler == "default" else f", {scheduler} scheduler"
        lines.append(f"  on {name:<12} temp {size(compiled.temp_bytes)}, in all {size(compiled.total_bytes)}{moved}{which}")
    return "\n".join(lines)
