"""Every choice of the manifest in one list."""

from typing import Any

from batchgrowth.exchanges import EXCHANGES
from batchgrowth.growth import GROWTH
from batchgrowth.learning_rates import LEARNING_RATES
from batchgrowth.optimizers import OPTIMIZERS
from batchgrowth.schedules import SCHEDULES
from batchgrowth.schema.choice import Registry

CHOICES: tuple[Registry[Any], ...] = (GROWTH, LEARNING_RATES, SCHEDULES, OPTIMIZERS, EXCHANGES)


def choices_help() -> str:
    """One paragraph per choice, with its field and names: the epilog of the commands that read a manifest."""
    return "\n\n".join(f"{choice.field_path}: {', '.join(choice)}" for choice in CHOICES)
