"""Decisions of a measured rule of growth."""

import math
from dataclasses import dataclass, field

MOST_DECISIONS = 256
"""The most changes of the batch that a measured rule may decide; the batch then stays as it is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a look at update `update`: the batch size wanted from then on, and the measured value.

    `asked` is the batch size that the rule asked for, before the bounds of Looks; NaN in a decision that was stored.
    """

    update: int
    wanted: int
    value: float
    asked: float = field(default=math.nan, compare=False)
