"""A position in the training."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Updates done, epochs done, and examples used of the current epoch."""

    update: int = 0
    epoch: int = 0
    offset: int = 0
