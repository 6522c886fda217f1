"""Where a training is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Updates done, epochs done, and how many examples of the present epoch are used already."""

    update: int = 0
    epoch: int = 0
    offset: int = 0
