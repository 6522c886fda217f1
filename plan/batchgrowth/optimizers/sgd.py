"""SGD: Sutskever et al., 2013."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Model, OptimizerEntry, Rule, exact
from batchgrowth.optimizers.rules import WEIGHT_DECAY_AT_MOST_ONE, below_one


class SGD(Model):
    """Stochastic gradient descent with momentum, in the form of Sutskever et al., 2013."""

    momentum: DecimalText = Field(
        "0", description='Momentum: a decimal in quotes, below 1. Default: "0". Example: "0.9".'
    )
    nesterov: bool = Field(False, description="Nesterov's form of momentum; needs momentum. Default: false.")
    weight_decay: DecimalText = Field(
        "0", description='L2 penalty added to the gradient: a decimal in quotes, at most 1. Default: "0".'
    )

    rules: ClassVar = (
        below_one("momentum", "momentum"),
        WEIGHT_DECAY_AT_MOST_ONE,
        Rule(
            "nesterov",
            "give a momentum more than 0 with it, or leave it out",
            lambda o: not o.nesterov or exact(o.momentum) > 0,
            "!self.nesterov || double(self.momentum) > 0.0",
        ),
    )


ENTRY = OptimizerEntry(
    name="SGD",
    summary="is stochastic gradient descent, with momentum, Nesterov's momentum and weight decay",
    source="Sutskever et al., 2013",
    block=SGD,
    implementation="batchgrowth_trainer.replica.optimizers.sgd:stepper",
    example={"momentum": "0.9"},
)
