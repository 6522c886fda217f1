"""How long to wait before the next attempt."""

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 30.0
MOST_DOUBLINGS = 16
"""Doublings of the first back-off that exceed any longest one; a larger exponent would overflow."""


def backoff_seconds(failures: int, longest: float = LONGEST_BACKOFF_SECONDS) -> float:
    """The wait after that many failures in a row, at least one: exponential, up to `longest` seconds."""
    return min(FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, MOST_DOUBLINGS), longest)
