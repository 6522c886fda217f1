"""LBFGS: Nocedal, 1980; in the form of Sandblaster, Dean et al., 2012."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Model, OptimizerEntry
from batchgrowth.optimizers.rules import WEIGHT_DECAY_AT_MOST_ONE, small


class LBFGS(Model):
    """Limited-memory BFGS without a line search: Nocedal and Wright, 2006, algorithm 7.4."""

    history: int = Field(
        10,
        ge=1,
        le=100,
        description="Pairs of a step and the change of the gradient by it that are kept, each of the size of two "
        "copies of the weights. Default: 10.",
    )
    least_curvature: DecimalText = Field(
        "0.0000000001",
        description="A pair whose inner product is not above this is left out. A decimal in quotes, more than 0 and at "
        'most 1. Default: "0.0000000001".',
    )
    weight_decay: DecimalText = Field(
        "0", description='L2 penalty added to the gradient: a decimal in quotes, at most 1. Default: "0".'
    )

    rules: ClassVar = (
        small("leastCurvature", "least_curvature", "0.0000000001"),
        WEIGHT_DECAY_AT_MOST_ONE,
    )


ENTRY = OptimizerEntry(
    name="LBFGS",
    summary="steps by the curvature that its last steps have shown, for batches of the whole data set",
    source="Dean et al., 2012; Nocedal and Wright, 2006",
    block=LBFGS,
    implementation="batchgrowth_trainer.replica.optimizers.lbfgs:maker",
    example={"history": 5},
    compares_gradients=True,
)
