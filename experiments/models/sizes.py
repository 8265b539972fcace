"""Every built-in model, at a size that this machine plans, compiles and times in seconds."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "mlp": {},
    "dropout_mlp": {},
    "resnet": {"depth": 20},
    "transformer": {"layers": 4},
    "unet": {},
    "lstm": {},
    "gru": {},
    "ctc": {},
    "integrator": {},
    "scan_transformer": {},
    "vgg": {"image": 64, "batch": 4, "hidden": 512},
    "vgg_unet": {"image": [64, 64], "batch": 2, "width": 16},
    "mobilenet": {"image": 64, "batch": 8},
}
