"""Adagrad: Duchi et al., 2011."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Model, OptimizerEntry
from batchgrowth.optimizers.rules import WEIGHT_DECAY_AT_MOST_ONE, small


class Adagrad(Model):
    """Adagrad: Duchi et al., 2011."""

    epsilon: DecimalText = Field(
        "0.0000000001",
        description="Added to the root of the sum of squares: a decimal in quotes, more than 0 and at most 1. "
        'Default: "0.0000000001".',
    )
    weight_decay: DecimalText = Field(
        "0", description='L2 penalty added to the gradient: a decimal in quotes, at most 1. Default: "0".'
    )

    rules: ClassVar = (small("epsilon", "epsilon", "0.0000000001"), WEIGHT_DECAY_AT_MOST_ONE)


ENTRY = OptimizerEntry(
    name="Adagrad",
    summary="scales each weight's step by the sum of its squared gradients so far",
    source="Duchi et al., 2011",
    block=Adagrad,
    implementation="batchgrowth_trainer.replica.optimizers.adagrad:stepper",
)
