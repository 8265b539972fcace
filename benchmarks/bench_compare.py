"""Claim: a ResNet-20 step planned into half its memory is no slower than plain JAX, and its gradients are the same bits.

All strategies of `remat-lab compare` on ResNet-20 (batch 32, 32 x 32), timed in alternation; medians of paired ratios. Writes
benchmarks/results/compare.json, the picture beside it as .png and .svg. Run it on a quiet machine.
"""

from __future__ import annotations

from pathlib import Path

import remat_lab as rl
from experiments.models import resnet
from remat_lab.report import as_text

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Runs the comparison, records it, then holds it to the claim."""
    model = resnet.loss(depth=20, batch=32)
    result = rl.compare(
        model.loss,
        *model.args,
        blocks=model.blocks,
        has_aux=True,
        real_args=model.materialise(0),
        rounds=25,
        time_limit=20.0,
        title="ResNet-20, batch 32",
    )
    result.save(RESULTS / "compare.json")
    for suffix in ("png", "svg"):
        result.plot(RESULTS / f"compare.{suffix}")
    print(as_text(result.to_json()))
    rows = {row.strategy: row for row in result.rows}
    half, keep, plain = rows["optimal@0.5"], rows["keep_all"], rows["plain"]
    for row in rows.values():
        if row.family not in ("plain", "policy") and row.compiled_temp_bytes is not None:
            assert row.max_grad_difference == 0, f"{row.strategy} changes the gradients by {row.max_grad_difference}"
    half_bytes, keep_bytes, ratio = half.compiled_temp_bytes, keep.compiled_temp_bytes, half.step_time_ratio
    assert half_bytes is not None, half.reason
    assert keep_bytes is not None, keep.reason
    assert half_bytes <= 0.6 * keep_bytes
    assert all(temp is None or half_bytes < temp for temp in plain.compiled_temp_by_scheduler.values())
    assert ratio is not None, half.reason
    assert ratio <= 1, f"a step of the plan takes {ratio:.2f} of plain JAX's time"


if __name__ == "__main__":
    main()
