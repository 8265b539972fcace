"""An audit as a page: plain text or Markdown, made from its data alone."""

from __future__ import annotations

from typing import Any

from remat_lab.units import difference, near, percent, size

Json = dict[str, Any]
Section = tuple[str, list[str], list[tuple[str, ...]]]  # question, sentences, rows of which the first is the heading

_WIDE = 62  # characters of a name


def as_text(data: Json) -> str:
    """The page for a terminal."""
    lines = [_title(data), _verdict(data)]
    for question, sentences, rows in _sections(data):
        lines += ["", question, *(f"  {sentence}" for sentence in sentences), *(f"  {row}" for row in _columns(rows))]
    return "\n".join(lines)


def as_markdown(data: Json) -> str:
    """The page as Markdown."""
    lines = [f"# {_title(data)}", "", _verdict(data)]
    for question, sentences, rows in _sections(data):
        lines += ["", f"## {question}", *(part for sentence in sentences for part in ("", sentence))]
        if rows:
            head, *body = rows
            lines += ["", f"| {' | '.join(head)} |", f"|{'|'.join(' --- ' for _ in head)}|"]
            lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in body]
    return "\n".join(lines)


def _title(data: Json) -> str:
    work = data["workload"]
    return f"Audit of {work['loss']}: {work['equations']} equations, planned by {work['solver']} ({work['status']})"


def _verdict(data: Json) -> str:
    """The whole page in a sentence."""
    peaks, price, equal = data["peaks"], data["price"], data["equivalence"]
    parts = [f"{size(peaks['compiled_bytes'])} of temporaries where plain JAX takes {size(peaks['plain_compiled_bytes'])}"]
    if peaks["budget_bytes"] is not None:
        side = "within" if peaks["compiled_bytes"] <= peaks["budget_bytes"] else "ABOVE"
        parts.append(f"{side} the budget of {size(peaks['budget_bytes'])}")
    parts.append(f"for {percent(price['extra_flops_ratio'])} FLOPs")
    same = "not compared" if equal is None else "equal bit for bit"
    if equal is not None and not equal["bitwise"]:
        same = f"equal to {difference(equal['largest_relative'])} of the largest gradient"
    return f"{', '.join(parts)}; loss and gradients {same}."


def _sections(data: Json) -> list[Section]:
    return [_memory(data), _lifetimes(data), _replay(data), _peaks(data), _price(data), _workload(data), _equivalence(data)]


def _memory(data: Json) -> Section:
    rows = data["memory"]
    total = sum(row["bytes"] for row in rows)
    table = [(row["name"], size(row["bytes"]), percent(row["bytes"] / total, sign=False) if total else "-") for row in rows]
    sentences = [] if any(row["name"] == "allocator reserve" for row in rows) else ["No allocator reserve: only a GPU has one."]
    return "1. What is in the memory?", sentences, [("class", "bytes", "share"), *table, ("together", size(total), "")]


def _lifetimes(data: Json) -> Section:
    table = [
        (
            _name(row["value"]),
            size(row["bytes"]),
            _spans(row["spans"]),
            _who(row["last_reader"]),
            _often(row["times_computed"]),
            f"{row['buffer']}{', ' + str(row['views']) + ' views' if row['views'] else ''}",
        )
        for row in data["lifetimes"]
    ]
    heading = ("made by", "bytes", "there from step to step", "last reader", "computed", "buffer")
    return "2. How long do the largest values live?", [], [heading, *table]


def _replay(data: Json) -> Section:
    replay = data["replay"]
    table = [(row["meaning"], str(row["equations"]), str(row["recomputed"])) for row in replay["classes"]]
    sentences = [f"{row['equation']} at {_place(row['source'])} runs once: {row['reason']}." for row in replay["forbidden"]]
    sentences = sentences or ["Everything: no equation forbids it."]
    more = replay["forbidden_count"] - len(replay["forbidden"])
    sentences += [f"So do {more} more equations."] if more else []
    return "3. What may be computed again?", sentences, [("class", "equations", "recomputed"), *table]


def _peaks(data: Json) -> Section:
    peaks = data["peaks"]
    rows = [
        ("budget", peaks["budget_bytes"]),
        ("planned", peaks["planned_bytes"]),
        ("compiled", peaks["compiled_bytes"]),
        ("plain JAX, compiled", peaks["plain_compiled_bytes"]),
        ("everything kept, planned", peaks["keep_all_planned_bytes"]),
        ("peak of the device", peaks["device_peak_bytes"]),
    ]
    table = [(name, "none" if count is None else size(count)) for name, count in rows]
    options = ", ".join(f"{key}={value}" for key, value in peaks["compiler_options"].items())
    sentences = [f"Compiled with {options or 'default options'}."]
    if peaks["planned_bytes"]:
        ratio = peaks["compiled_bytes"] / peaks["planned_bytes"] - 1
        side = "above" if ratio > 0 else "below"
        sentences.append(f"Compiled, it is {percent(abs(ratio), sign=False)} {side} what was planned.")
    if peaks["device_peak_bytes"] is None:
        sentences.append("The peak of a device was not measured: this backend does not count it.")
    return "4. Is the peak what was planned?", sentences, [("temporaries", "bytes"), *table]


def _price(data: Json) -> Section:
    price = data["price"]
    sentences = [
        f"{price['recomputed_steps']} of {price['steps']} steps run again: FLOPs {percent(price['extra_flops_ratio'])}, "
        f"bytes moved {percent(price['extra_moved_bytes_ratio'])}, cost {percent(price['extra_cost_ratio'])}, "
        f"critical path {percent(price['critical_path_ratio'] - 1)}."
    ]
    table = [(_name(row["step"]), str(row["times"]), percent(row["cost_ratio"], digits=2)) for row in price["dearest"]]
    return "5. What does it cost?", sentences, [("recomputed, the dearest", "times", "cost"), *table] if table else []


def _workload(data: Json) -> Section:
    work = data["workload"]
    where = work["environment"]
    gap = percent(work["gap"], sign=False, digits=2)
    versions = ", ".join(f"{name} {number}" for name, number in where.get("versions", {}).items())
    return (
        "6. On what?",
        [
            f"{work['arguments']} arrays as arguments, among them {', '.join(work['largest_arguments'])}.",
            f"Plan: {work['solver']}, {work['status']}, gap {gap}, checked as {work['check']}.",
            f"{where['cores']} cores of {where['processor']} ({where['backend']}), {where['system']}.",
            f"Python {where['python']}, {versions}.",
        ],
        [],
    )


def _equivalence(data: Json) -> Section:
    found, question = data["equivalence"], "7. Are loss and gradients those of plain JAX?"
    if found is None:
        return question, ["Not checked: nothing was run."], []
    if found["bitwise"]:
        return question, [f"Yes: all {found['outputs']} results are equal bit for bit (seed {found['seed']})."], []
    made = f", made by {_place(found['made_by'])}" if found["made_by"] else ""
    return (
        question,
        [
            f"{found['outputs_bitwise']} of {found['outputs']} results are equal bit for bit (seed {found['seed']}).",
            f"Largest difference {difference(found['largest_absolute'])}, in the {found['differs_most']}{made}; that is "
            f"{difference(found['largest_relative'])} of the largest gradient.",
            f"The loss differs by {difference(found['loss_difference'])}.",
        ],
        [],
    )


def _spans(spans: list[list[int]]) -> str:
    shown = [f"{first}-{last}" for first, last in spans]
    return ", ".join(shown if len(shown) < 4 else [*shown[:2], "...", shown[-1]])


def _who(name: str) -> str:
    """A step without the type of its result."""
    primitive, _, place = _place(near(name)).partition(" at ")
    return f"{primitive.partition(' ')[0]} at {place}" if place else name


def _often(times: int) -> str:
    return "once" if times == 1 else f"{times} times"


def _place(text: str) -> str:
    """A line of source without the folders that lead to it and the function around it."""
    before, at, path = text.rpartition(" at ")
    return f"{before}{at}{path.rsplit('/', 1)[-1].partition(' (')[0]}"


def _name(text: str, wide: int = _WIDE) -> str:
    text = _place(near(text))
    return text if len(text) <= wide else f"{text[: wide - 3]}..."


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    numeric = [all(row[i][:1].isdigit() or row[i][:1] in "+-<" or not row[i] for row in rows[1:]) for i in range(len(widths))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in rows
    ]
