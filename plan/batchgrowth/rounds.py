"""Rounds of updates: after each, all logical replicas have the same weights, so a worker may join or leave there."""

from collections.abc import Iterator

from batchgrowth.position import Position
from batchgrowth.stages import Plan, Step


def round_at(plan: Plan, position: Position, updates: int) -> tuple[Step, ...]:
    """The next `updates` updates; fewer if the epoch ends before. Raises IndexError if none is left."""
    steps = [plan.step_at(position)]
    while len(steps) < updates and steps[-1].after.offset:
        steps.append(plan.step_at(steps[-1].after))
    return tuple(steps)


def rounds_from(plan: Plan, position: Position, updates: int) -> Iterator[tuple[Step, ...]]:
    """The rounds from `position` to the end of the plan."""
    while not plan.is_done(position):
        steps = round_at(plan, position, updates)
        yield steps
        position = steps[-1].after
