"""LARS: You et al., 2017."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Model, OptimizerEntry
from batchgrowth.optimizers.rules import WEIGHT_DECAY_AT_MOST_ONE, below_one, small


class LARS(Model):
    """SGD whose step in each layer is in proportion to the norm of its weights: You et al., 2017."""

    momentum: DecimalText = Field("0.9", description='Momentum: a decimal in quotes, below 1. Default: "0.9".')
    trust_coefficient: DecimalText = Field(
        "0.001",
        description="The step of a layer at learning rate 1, relative to the norm of its weights. A decimal in quotes, "
        'more than 0 and at most 1. Default: "0.001".',
    )
    weight_decay: DecimalText = Field(
        "0",
        description="L2 penalty added to the gradient. What optimizer.withoutDecay names takes steps of plain SGD. "
        'A decimal in quotes, at most 1. Default: "0".',
    )

    rules: ClassVar = (
        below_one("momentum", "momentum"),
        small("trustCoefficient", "trust_coefficient", "0.001"),
        WEIGHT_DECAY_AT_MOST_ONE,
    )


ENTRY = OptimizerEntry(
    name="LARS",
    summary="is SGD with a learning rate for each layer, in proportion to the norm of its weights, for large batches",
    source="You et al., 2017",
    block=LARS,
    implementation="batchgrowth_trainer.replica.optimizers.lars:stepper",
    example={"weightDecay": "0.0001"},
)
