"""LAMB: You et al., 2020."""

from pydantic import Field

from batchgrowth.extend import DecimalText, OptimizerEntry
from batchgrowth.optimizers.adam import Adam


class LAMB(Adam):
    """Adam whose step in each layer has the norm of its weights: You et al., 2020, algorithm 2."""

    epsilon: DecimalText = Field(
        "0.000001",
        description="Added to the root of the squared mean: a decimal in quotes, more than 0 and at most 1. "
        'Default: "0.000001".',
    )
    weight_decay: DecimalText = Field(
        "0.01",
        description="Part of the step whose norm is scaled. What optimizer.withoutDecay names takes steps of plain "
        'Adam. A decimal in quotes, at most 1. Default: "0.01".',
    )


ENTRY = OptimizerEntry(
    name="LAMB",
    summary="is AdamW with a step for each layer, in proportion to the norm of its weights, for large batches",
    source="You et al., 2020",
    block=LAMB,
    implementation="batchgrowth_trainer.replica.optimizers.lamb:stepper",
)
