"""Workloads that ship: modules with functions that return a `Workload`, for a manifest's entrypoint to name.

The arguments of such a function are strings in a manifest; `whole` and `share` parse them.
"""

import math

from batchgrowth.errors import WorkloadError


def whole(name: str, text: str, least: int = 1) -> int:
    """Return the integer in `text`, at least `least`. Raises WorkloadError, which names the argument."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise WorkloadError(f"workload.arguments.{name}: {text!r} was given; write a whole number from {least}")
    return number


def share(name: str, text: str) -> float:
    """Return the number in `text`, at least 0 and below 1. Raises WorkloadError, which names the argument."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise WorkloadError(f"workload.arguments.{name}: {text!r} was given; write a number of at least 0 and below 1")
    return number
