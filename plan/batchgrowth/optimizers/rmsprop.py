"""RMSprop: Tieleman and Hinton, 2012."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Model, OptimizerEntry
from batchgrowth.optimizers.rules import WEIGHT_DECAY_AT_MOST_ONE, below_one, small


class RMSprop(Model):
    """RMSprop: Tieleman and Hinton, 2012, lecture 6.5."""

    alpha: DecimalText = Field(
        "0.99", description='Decay of the mean of squared gradients: a decimal in quotes, below 1. Default: "0.99".'
    )
    epsilon: DecimalText = Field(
        "0.00000001",
        description="Added to the root of the squared mean: a decimal in quotes, more than 0 and at most 1. "
        'Default: "0.00000001".',
    )
    momentum: DecimalText = Field("0", description='Momentum: a decimal in quotes, below 1. Default: "0".')
    centered: bool = Field(
        False, description="Subtracts the squared mean of gradients from the mean of their squares. Default: false."
    )
    weight_decay: DecimalText = Field(
        "0", description='L2 penalty added to the gradient: a decimal in quotes, at most 1. Default: "0".'
    )

    rules: ClassVar = (
        below_one("alpha", "alpha"),
        below_one("momentum", "momentum"),
        small("epsilon", "epsilon", "0.00000001"),
        WEIGHT_DECAY_AT_MOST_ONE,
    )


ENTRY = OptimizerEntry(
    name="RMSprop",
    summary="scales each weight's step by a running mean of its squared gradients",
    source="Tieleman and Hinton, 2012",
    block=RMSprop,
    implementation="batchgrowth_trainer.replica.optimizers.rmsprop:stepper",
    example={"momentum": "0.9", "centered": True},
)
