"""Every choice of the manifest: the registries of growth rules, learning rates, schedules, optimizers and exchanges."""

from typing import Any

from batchgrowth.choices import (
    exchanges,
    growth_declared,
    growth_measured,
    learning_rate_rules,
    learning_rate_schedules,
    optimizers,
)
from batchgrowth.extend import ExchangeEntry, GrowthEntry, OptimizerEntry, RateEntry, ScheduleEntry
from batchgrowth.registry import Registry

GROWTH = Registry("batch.growth.type", "Constant", GrowthEntry, growth_declared, growth_measured)
"""How the batch grows."""

LEARNING_RATES = Registry("learningRate.rule", "DecayPastMaximum", RateEntry, learning_rate_rules)
"""How the learning rate follows the batch."""

SCHEDULES = Registry("learningRate.schedule.type", "Constant", ScheduleEntry, learning_rate_schedules)
"""How the learning rate falls by epoch."""

OPTIMIZERS = Registry("optimizer.type", "SGD", OptimizerEntry, optimizers)
"""What turns a gradient into new weights."""

EXCHANGES = Registry("exchange.type", "AllReduce", ExchangeEntry, exchanges)
"""How gradients or weights move between the workers."""

CHOICES: tuple[Registry[Any], ...] = (GROWTH, LEARNING_RATES, SCHEDULES, OPTIMIZERS, EXCHANGES)

INEXACT = tuple(name for name, entry in EXCHANGES.items() if entry.promise != "Exact")
"""The exchanges that give other weights than SingleProcess, so they belong to the mathematics of a job."""

REPEATABLE = tuple(name for name, entry in EXCHANGES.items() if entry.promise == "Repeatable")
"""The exchanges among INEXACT whose weights do not depend on the workers."""


def choices_help() -> str:
    """Return one paragraph per choice, with its field and names: the epilog of the commands that read a manifest."""
    return "\n\n".join(f"{choice.field_path}: {', '.join(choice)}" for choice in CHOICES)
