"""Learning rates, exact until the last step: lr / B = lr0 / d under the default rule."""

from __future__ import annotations

from fractions import Fraction

from batchgrowth.spec import LearningRate, Warmup, exact


def learning_rate(rate: LearningRate, initial: int, wanted: int, used: int) -> Fraction:
    """The exact learning rate of a batch of `used` examples where `wanted` were wanted and `initial` at the start.

    DecayPastMaximum is the rule of Sievert and Shah, 2021: lr0 · used / wanted.
    Linear is that of Goyal et al., 2017: lr0 · used / initial.
    """
    lr0 = exact(rate.initial)
    if rate.rule == "DecayPastMaximum":
        return lr0 * used / wanted
    return lr0 * used / initial if rate.rule == "Linear" else lr0


def falls_past_maximum(rate: LearningRate) -> bool:
    """Whether the learning rate still changes when the batch is at its maximum and more is wanted."""
    return rate.rule == "DecayPastMaximum"


def warmed(warmup: Warmup | None, update: int, learning_rate: float) -> float:
    """The learning rate of update number `update`, counted from 0, on or after the ramp of the warm-up."""
    if warmup is None or update >= warmup.updates - 1:
        return learning_rate
    start = float(exact(warmup.initial))
    return start + (learning_rate - start) * ((update + 1) / warmup.updates)
