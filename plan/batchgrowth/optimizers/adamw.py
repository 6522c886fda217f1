"""AdamW: Loshchilov and Hutter, 2019."""

from pydantic import Field

from batchgrowth.extend import DecimalText, OptimizerEntry
from batchgrowth.optimizers.adam import Adam


class AdamW(Adam):
    """Adam with the weight decay taken off the weights: Loshchilov and Hutter, 2019."""

    weight_decay: DecimalText = Field(
        "0.01", description='Taken off the weights in each update: a decimal in quotes, at most 1. Default: "0.01".'
    )


ENTRY = OptimizerEntry(
    name="AdamW",
    summary="is Adam with the weight decay subtracted from the weights",
    source="Loshchilov and Hutter, 2019",
    block=AdamW,
    implementation="batchgrowth_trainer.replica.optimizers.adam:decoupled_stepper",
)
