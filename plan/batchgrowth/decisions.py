"""Decisions of a measured rule of growth."""

from dataclasses import dataclass

MOST_DECISIONS = 256
"""The most changes of the batch that a measured rule may decide; the batch then stays as it is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a look at update `update`: the batch size wanted from then on, and the measured value."""

    update: int
    wanted: int
    value: float
