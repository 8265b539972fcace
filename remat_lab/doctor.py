"""`remat-lab doctor`: whether what is installed does what plans rest on, on one page that can be pasted into a bug report.

Nothing that is asked for may end the page: what raises is a line that says so.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from remat_lab import environment
from remat_lab.progress import Report

FORMAT, VERSION = "remat_lab doctor", 1
State = Literal["ok", "note", "fails"]

_NEEDED = ("remat-lab", "jax", "jaxlib", "flax", "optax", "ortools", "numpy", "scipy")
_OPTIONAL = ("equinox", "dm-haiku", "jax-cuda13-pjrt", "jax-cuda12-pjrt", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "libtpu")


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at.

    Attributes:
        subject: what.
        state: "ok", "note" for what is not installed or not tested, "fails" for what is here and does not work.
        text: what was found, and what to do.
    """

    subject: str
    state: State
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a heading."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The page."""

    sections: tuple[Section, ...]

    @property
    def works(self) -> bool:
        """Whether all that is installed works."""
        return all(line.state != "fails" for section in self.sections for line in section.lines)

    def to_json(self) -> dict[str, Any]:
        """The page as data."""
        return {"format": FORMAT, "version": VERSION, "works": self.works, **asdict(self)}

    def __str__(self) -> str:
        lines = [line for section in self.sections for line in section.lines]
        page = ["remat-lab doctor"]
        for section in self.sections:
            width = max((len(line.subject) for line in section.lines), default=0)
            page += ["", section.title]
            page += [f"  {line.state:<5}  {line.subject:<{width}}  {line.text}".rstrip() for line in section.lines]
        failed = sum(line.state == "fails" for line in lines)
        verdict = "All that is installed works." if self.works else f"{failed} of {len(lines)} lines fail."
        return "\n".join([*page, "", verdict])


def examine(report: Report | None = None) -> Diagnosis:
    """Looks at everything.

    Args:
        report: told what is being done, how many sections are done, and how many there are.
    """
    parts: dict[str, Callable[[], Iterator[Line]]] = {
        "versions": _versions,
        "names of JAX's inside": _names,
        "compiler": _compiler,
        "a tiny plan, proven": _proofs,
        "targets": _targets,
    }
    sections: list[Section] = []
    for done, (title, part) in enumerate(parts.items()):
        if report is not None:
            report(title, done, len(parts))
        sections.append(Section(title, tuple(_lines(title, part))))
    return Diagnosis(tuple(sections))


def _lines(title: str, part: Callable[[], Iterator[Line]]) -> Iterator[Line]:
    """The lines of a section; what ends it is one of them."""
    try:
        yield from part()
    except Exception as error:
        yield Line(title, "fails", _told(error))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _tried(subject: str, run: Callable[[], str]) -> Line:
    try:
        return Line(subject, "ok", run())
    except Exception as error:
        return Line(subject, "fails", _told(error))


def _versions() -> Iterator[Line]:
    yield Line(
        "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}, {environment.cores()} cores"
    )
    found = {name: _version(name) for name in (*_NEEDED, *_OPTIONAL)}
    for name in _NEEDED:
        if found[name] is None:
            yield Line(name, "fails", f"not installed: pip install {name}")
        elif name == "jax":
            yield _jax_version(found[name] or "")
        elif name == "jaxlib" and found["jax"] is not None and found[name] != found["jax"]:
            yield Line(name, "note", f"{found[name]}, another than jax {found['jax']}: pip install jaxlib=={found['jax']}")
        else:
            yield Line(name, "ok", found[name] or "")
    for name in _OPTIONAL:
        if found[name] is not None:
            yield Line(name, "ok", found[name] or "")
    yield Line("not installed", "note", ", ".join(name for name in _OPTIONAL if found[name] is None) or "nothing that could be")


def _jax_version(found: str) -> Line:
    from remat_lab._jax.names import TESTED

    if found in TESTED:
        return Line("jax", "ok", f"{found}, tested")
    return Line("jax", "note", f"{found}, not tested: tested are {', '.join(TESTED)}. The lines below say what works")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _names() -> Iterator[Line]:
    from remat_lab._jax import checks

    for finding in checks.check_all():
        name, problem = finding.name, finding.problem
        if problem is None:
            yield Line(name.where, "ok", name.purpose)
        elif name.without is not None:
            yield Line(name.where, "note", f"missing, so {name.without} ({problem})")
        else:
            yield Line(name.where, "fails", f"needed for {name.feature}: {problem}")


def _compiler() -> Iterator[Line]:
    from remat_lab import doctor_programs as programs

    yield _tried("options", programs.takes_options)
    yield _tried("order", programs.holds_order)
    yield _tried("recomputation", programs.keeps_recomputation)


def _proofs() -> Iterator[Line]:
    from remat_lab import doctor_programs as programs

    yield _tried("gradients", programs.same_gradients)
    yield _tried("kept", programs.keeps_what_is_planned)
    yield _tried("recomputed", programs.computes_again_what_is_planned)
    yield _tried("fits", programs.fits_as_compiled)


def _targets() -> Iterator[Line]:
    import jax

    from remat_lab import doctor_programs as programs
    from remat_lab.targets import NAMES, Target

    for device in jax.devices():
        yield Line(str(device), "ok", f"{device.device_kind}, runs here")
    absent: dict[str, list[Target]] = {}  # by platform: one compiler serves all of its devices
    for target in map(Target.named, NAMES):
        if not target.is_present:
            absent.setdefault(target.platform, []).append(target)
    for targets in absent.values():
        subject, problem = ", ".join(target.name for target in targets), targets[0].problem()
        if problem is None:
            yield _tried(subject, partial(programs.compiles_for, targets[0]))
        else:
            yield Line(subject, "note" if "not installed" in problem else "fails", problem)
