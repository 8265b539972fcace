"""The README's example runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def test_example_runs_and_keeps_its_budget(checkout: Path, capsys: Any) -> None:
    code = re.findall(r"```python\n(.*?)```", (checkout / "README.md").read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code.replace("time_limit=10", "time_limit=1"), names)
    assert names["plan"].predicted.peak_bytes <= 20 * 2**20 < names["plan"].predicted.keep_all_peak_bytes
    assert "budget" in capsys.readouterr().out
    assert len(names["grads"]) == 32
