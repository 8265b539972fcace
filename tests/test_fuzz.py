"""Random programs through plan, emit and run, by both emitters; and the programs that once failed, as small as they get."""

from __future__ import annotations

import hypothesis
import pytest
from fuzzing import Wrong, check
from programs import KINDS, Program, Step, programs

from remat_lab import emit

_SETTINGS = {"database": None, "deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}


@hypothesis.seed(2024)
@hypothesis.settings(max_examples=60, phases=[hypothesis.Phase.generate], **_SETTINGS)
@hypothesis.given(programs(max_steps=3))
def test_sixty_random_programs_are_those_of_plain_jax_in_both_forms(program):
    check(program)


FOUND = {
    "derivative rules beside a reference": Program(
        (Step("other", 1, 4, 2), Step("rule"), Step("rule", 2)), rows=3, columns=8, fraction=0.95
    ),
    "a comparison with a maximum of what another kernel computed": Program(
        (Step("branch"), Step("rule"), Step("rule"), Step("reduction", variant=4)), rows=16, columns=4, fraction=1.0
    ),
    "a name for the values of an argsort, which nobody reads": Program(
        (Step("discrete", variant=1), Step("binary"), Step("loop"), Step("binary"), Step("loop")),
        rows=16,
        columns=4,
        fraction=0.3,
    ),
    "a reference inside a region": Program(
        (Step("elementwise"), Step("other", variant=2), Step("elementwise"), Step("branch", 1, 0, 8)),
        rows=16,
        columns=4,
        fraction=0.5,
    ),
    "the smallest budget that an error names for regions": Program(
        (
            Step("convolution", 2, 1, 1),
            Step("dot", 0, 3, 1),
            Step("binary", 0, 4, 0),
            Step("other", 1, 0, 1),
            Step("dot", 0, 2, 2),
            Step("discrete", 2, 3, 4),
        ),
        summed=(0, 0),
        fraction=0.5,
    ),
    "the smallest budget that an error names for regions with a loop, nested otherwise under another budget": Program(
        (Step("loop", variant=4), Step("dot", 1, 3), Step("indexing", 2, 2, 3)),
        rows=3,
        columns=8,
        dtype="bfloat16",
        both=True,
        aux=(0, 0),
        summed=(2, 1),
        fraction=0.5,
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_the_fuzzer_found_stays_right(what):
    check(FOUND[what])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_every_kind_of_step_in_every_variant(kind, dtype):
    for variant in range(8):
        check(Program((Step("dot"), Step(kind, 0, 1, variant), Step("dot", variant=1)), columns=8, dtype=dtype, fraction=0.7))


def test_the_fuzzer_notices_what_is_wrong(monkeypatch):
    """A step that is emitted with a result slightly off."""
    original = emit.run_equation

    def wrong(q, local, env):
        original(q, local, env)
        if q.name == "tanh":
            local[q.outs[0]] = local[q.outs[0]] * (1 + 1e-2)

    monkeypatch.setattr(emit, "run_equation", wrong)
    with pytest.raises(Wrong, match="times the tolerance"):
        check(Program((Step("dot"), Step("elementwise", variant=1)), fraction=1.0))
