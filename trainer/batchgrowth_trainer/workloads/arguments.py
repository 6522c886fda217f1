"""Reading a workload's arguments, which a manifest gives as strings."""

from __future__ import annotations

import math

from batchgrowth.errors import WorkloadError


def whole(name: str, text: str, least: int = 1) -> int:
    """The whole number that `text` writes, at least `least`. Raises WorkloadError naming the argument."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise WorkloadError(f"workload.arguments.{name}: {text!r} was given; write a whole number from {least}")
    return number


def share(name: str, text: str) -> float:
    """The number from 0 up to, but not, 1 that `text` writes. Raises WorkloadError naming the argument."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise WorkloadError(f"workload.arguments.{name}: {text!r} was given; write a number from 0 up to but not 1")
    return number
