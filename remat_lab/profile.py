"""Measured costs: every structurally distinct step of a program compiled alone, and timed on the present device.

The steps that a plan is made of are separated by barriers in the emitted program, so that what a step takes alone is close to
what it takes there. What is not: a program's launch, which is subtracted; fresh memory, which a program has for all of its
temporaries at once (`profile_memory`); and the caches, which hold a step's inputs more often when it is repeated than when
others ran between.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import jax

from remat_lab import _jax, environment
from remat_lab.errors import InvalidArgument, ProfileWarning
from remat_lab.fuse import Fused
from remat_lab.primitives import FUSIBLE, REDUCTIONS
from remat_lab.profile_cache import Cache, Measurement, default_cache
from remat_lab.profile_memory import LARGE_BYTES, memory_seconds
from remat_lab.profile_step import StepProgram, cannot_run_alone, step_program
from remat_lab.profile_timer import Timing, compile_step, time_steps
from remat_lab.targets import Target, as_target
from solvers.graph import Graph

_FORMAT = "5"  # of keys and files: what was measured another way is not read

Report = Callable[[str, int, int], None]
"""Called with what is being done, how many parts of it are done, and how many there are."""


@dataclass(frozen=True)
class Profile:
    """What is known about the steps of a program.

    Attributes:
        measurements: by node, of the steps that could be measured.
        reasons: by node, why a step could not.
        distinct: number of structurally different steps.
        measured: how many of them were measured now, rather than read from the cache.
        seconds: time that it took.
        memory_seconds_per_byte: what a byte of large temporaries costs beside the steps (`profile_memory`); 0 off the CPU.
    """

    measurements: dict[int, Measurement]
    reasons: dict[int, str]
    distinct: int
    measured: int
    seconds: float
    memory_seconds_per_byte: float = 0.0

    def apply(self, fused: Fused) -> Fused:
        """The same graph with measured seconds as costs (where steps were timed) and measured workspaces.

        A step that could not be measured keeps what it had. So does the workspace of a loop, whose carries must be copied if it
        is alone, but lie in their results' buffers in the program.
        """
        nodes = list(fused.graph.nodes)
        for v, found in self.measurements.items():
            cost = nodes[v].cost if found.seconds is None else found.seconds
            nodes[v] = replace(nodes[v], cost=cost, workspace=_workspace(fused, v, found.workspace_bytes))
        return replace(fused, graph=Graph(tuple(nodes), fused.graph.outputs))

    def seconds_of(self, order: Iterable[int], otherwise: Graph, temp_bytes: int = 0) -> float:
        """Predicted time of a program.

        Args:
            order: its computations.
            otherwise: steps that could not be timed take their cost in this graph.
            temp_bytes: its temporaries, which are one block of memory. A large one costs time of its own (`profile_memory`).
        """
        total = temp_bytes * self.memory_seconds_per_byte if temp_bytes >= LARGE_BYTES else 0.0
        for v in order:
            found = self.measurements.get(v)
            total += otherwise.nodes[v].cost if found is None or found.seconds is None else found.seconds
        return total


def profile(
    fused: Fused,
    *,
    timed: bool = True,
    target: Target | str | None = None,
    cache: Cache | None = None,
    rounds: int = 7,
    progress: Report | None = None,
) -> Profile:
    """Measures the steps of a program, each distinct one once, now or at any time before.

    Args:
        fused: the program's steps.
        timed: whether to run them. Otherwise they are only compiled, for their workspace.
        target: the device; it must be present to be timed. The one that JAX uses if None.
        cache: where measurements are kept; the user's cache folder if None (see `profile_cache.default_cache`).
        rounds: how often each step is timed.
        progress: called as the work goes on.

    Raises:
        InvalidArgument: if steps of a target that is not the present device should be timed.

    Warns:
        ProfileWarning: with the steps that cannot be measured, and why.
    """
    chosen, cache = as_target(target), cache or default_cache()
    if timed and not chosen.is_default:
        raise InvalidArgument(f"steps can be timed only on the device that JAX uses, which is not {chosen.name}")
    start = time.perf_counter()
    setting = _setting(chosen)
    texts: dict[int, str] = {}
    steps = {v: step_program(fused, v, texts) for v in fused.groups}
    distinct = {step.key: step for step in steps.values()}
    reasons = {key: reason for key, step in distinct.items() if (reason := cannot_run_alone(step.equations)) is not None}
    known: dict[str, Measurement] = {}
    for key in distinct.keys() - reasons.keys():
        found = cache.read(_key(setting, key))
        if found is not None and (found.seconds is not None or not timed):
            known[key] = found
    missing = [step for key, step in distinct.items() if key not in known and key not in reasons]
    for step, outcome in _measure(missing, chosen, timed, rounds, progress or (lambda *_: None)):
        if isinstance(outcome, str):
            reasons[step.key] = outcome
        else:
            known[step.key] = outcome
            about = {"step": [q.name for q in step.equations], "inputs": [str(x) for x in step.inputs], "setting": setting}
            cache.write(_key(setting, step.key), outcome, **about)
    if reasons:
        _warn(distinct, reasons)
    return Profile(
        measurements={v: known[step.key] for v, step in steps.items() if step.key in known},
        reasons={v: reasons[step.key] for v, step in steps.items() if step.key in reasons},
        distinct=len(distinct),
        measured=sum(step.key in known for step in missing),
        memory_seconds_per_byte=_memory(cache, setting) if timed and chosen.platform == "cpu" else 0.0,
        seconds=time.perf_counter() - start,
    )


def _workspace(fused: Fused, node: int, alone: int) -> int:
    """What a step needs in its program, from what it needs alone.

    What an epilogue changes element by element is a temporary if the step is alone, but in its result's buffer in the program.
    """
    program, group, rule = fused.program, fused.groups[node], fused.graph.nodes[node].workspace
    if any(_jax.sub_jaxprs(program.equations[k].eqn) for k in group.equations):
        return rule
    if program.equations[group.root].name in REDUCTIONS:
        return max(alone, rule)  # alone it shares nothing with other steps
    if program.equations[group.root].name in FUSIBLE:
        return min(alone, max(rule, alone - fused.graph.nodes[node].size))
    return alone


def _measure(
    steps: list[StepProgram], target: Target, timed: bool, rounds: int, progress: Report
) -> list[tuple[StepProgram, Measurement | str]]:
    """For each step what was measured, or why it could not be."""
    compiled, failed = [], []
    for done, step in enumerate(steps):
        progress(f"compile {step.name}", done, len(steps))
        try:
            compiled.append((step, compile_step(step, target)))
        except Exception as error:  # whatever a primitive's own code raises outside of the program it was written for
            failed.append((step, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"))
    if timed and compiled:
        timings: list[Timing | None] = [
            *time_steps(compiled, rounds=rounds, progress=lambda done, total: progress("time", done, total))
        ]
    else:
        timings = [None] * len(compiled)
    found: list[tuple[StepProgram, Measurement | str]] = [
        (step, Measurement(None if timing is None else timing.seconds, program.temp_bytes))
        for (step, program), timing in zip(compiled, timings, strict=True)
    ]
    return found + failed


def _setting(target: Target) -> dict[str, str]:
    """Everything beside its structure that a step's time depends on."""
    here = target.here()
    processor = environment.processor() if target.platform == "cpu" else target.name if here is None else here.device_kind
    return {
        "format": _FORMAT,
        "device": processor,
        "cores": str(environment.cores()) if target.platform == "cpu" else "",
        "jax": jax.__version__,
        "jaxlib": jax.lib.__version__,
        "compiler_options": str(sorted(target.compiler_options.items())),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "precision": str(jax.config.jax_default_matmul_precision),
    }


def _memory(cache: Cache, setting: dict[str, str]) -> float:
    """Seconds per byte of large temporaries, measured now or at any time before."""
    size, key = 2 * LARGE_BYTES, _key(setting, "large temporaries")
    found = cache.read(key)
    if found is None or found.seconds is None:
        found = Measurement(memory_seconds(size), size)
        cache.write(key, found, step=["large temporaries"], inputs=[], setting=setting)
    return (found.seconds or 0.0) / size


def _key(setting: dict[str, str], structure: str) -> str:
    return hashlib.sha256(f"{sorted(setting.items())} {structure}".encode()).hexdigest()


def _warn(distinct: dict[str, StepProgram], reasons: dict[str, str]) -> None:
    shown = [f"{distinct[key].name}: {reason}" for key, reason in list(reasons.items())[:3]]
    more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
    warnings.warn(
        f"{len(reasons)} of {len(distinct)} steps cannot be measured alone and keep the cost that they had: "
        f"{'; '.join(shown)}{more}",
        ProfileWarning,
        stacklevel=3,
    )
