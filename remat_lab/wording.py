"""Values in messages: short, the same on every run, and cut where they differ."""

from __future__ import annotations

import re

_LONG = 60  # characters of a value that a message shows
_ADDRESS = re.compile(r" (object )?at 0x[0-9a-f]+")


def without_addresses(text: str) -> str:
    """A text without the addresses of objects, which differ from run to run."""
    return _ADDRESS.sub("", text)


def shortened(text: str, at: int = 0) -> str:
    """At most 60 characters of a text, around a place in it."""
    start = max(0, min(at - _LONG // 3, len(text) - _LONG))
    stop = start + _LONG
    return f"{'...' if start else ''}{text[start:stop]}{'...' if stop < len(text) else ''}"


def values_apart(planned: str, found: str) -> tuple[str, str]:
    """Two texts that differ, each shortened so that the difference is seen."""
    pairs = enumerate(zip(planned, found, strict=False))
    at = next((k for k, (ours, theirs) in pairs if ours != theirs), min(len(planned), len(found)))
    return shortened(planned, at), shortened(found, at)
