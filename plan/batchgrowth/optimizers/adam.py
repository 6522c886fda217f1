"""Adam: Kingma and Ba, 2015."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Model, OptimizerEntry
from batchgrowth.optimizers.rules import WEIGHT_DECAY_AT_MOST_ONE, below_one, small


class Adam(Model):
    """Adam: Kingma and Ba, 2015."""

    beta1: DecimalText = Field(
        "0.9", description='Decay of the mean of gradients: a decimal in quotes, below 1. Default: "0.9".'
    )
    beta2: DecimalText = Field(
        "0.999", description='Decay of the mean of squared gradients: a decimal in quotes, below 1. Default: "0.999".'
    )
    epsilon: DecimalText = Field(
        "0.00000001",
        description="Added to the root of the squared mean: a decimal in quotes, more than 0 and at most 1. "
        'Default: "0.00000001".',
    )
    weight_decay: DecimalText = Field(
        "0",
        description="Weight decay: added to the gradient by Adam, taken off the weights by AdamW. A decimal in "
        'quotes, at most 1. Default: "0".',
    )

    rules: ClassVar = (
        below_one("beta1", "beta1"),
        below_one("beta2", "beta2"),
        small("epsilon", "epsilon", "0.00000001"),
        WEIGHT_DECAY_AT_MOST_ONE,
    )


ENTRY = OptimizerEntry(
    name="Adam",
    summary="scales each weight's step by running means of gradients and their squares",
    source="Kingma and Ba, 2015",
    block=Adam,
    implementation="batchgrowth_trainer.replica.optimizers.adam:stepper",
    example={"weightDecay": "0.001"},
)
