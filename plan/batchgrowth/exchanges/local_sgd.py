"""LocalSGD: logical replicas step by themselves and average now and then. Zinkevich et al., 2010; Stich, 2019."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.exchanges.rules import every_updates_field, replica_rules, replicas_field
from batchgrowth.extend import DecimalText, ExchangeEntry, Model, Rule, exact
from batchgrowth.optimizers.rules import below_one


class Outer(Model):
    """An optimizer over averages: the mean change of a round is its gradient. DiLoCo of Douillard et al., 2023."""

    learning_rate: DecimalText = Field(
        "1", description='The part of the mean change that is made: a decimal in quotes. Default: "1". Example: "0.7".'
    )
    momentum: DecimalText = Field(
        "0", description='Momentum of the mean changes: a decimal in quotes, below 1. Default: "0". Example: "0.9".'
    )
    nesterov: bool = Field(False, description="Nesterov's form of momentum; needs momentum. Default: false.")

    rules: ClassVar = (
        Rule(
            "learningRate",
            'give a decimal more than 0 and at most 10, such as "0.7"',
            lambda o: 0 < exact(o.learning_rate) <= 10,
            "double(self.learningRate) > 0.0 && double(self.learningRate) <= 10.0",
        ),
        below_one("momentum", "momentum"),
        Rule(
            "nesterov",
            "give a momentum more than 0 with it, or leave it out",
            lambda o: not o.nesterov or exact(o.momentum) > 0,
            "!self.nesterov || double(self.momentum) > 0.0",
        ),
    )


class LocalSGD(Model):
    """Logical replicas, spread over the workers there are; each takes its part of every batch."""

    replicas: int = replicas_field(1000)
    every_updates: int = every_updates_field(8, "average")
    after_updates: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Updates before the first local one, in which gradients are added as by AllReduce (post-local SGD "
        "of Lin et al., 2020). Default: 0.",
    )
    outer: Outer | None = Field(
        None,
        description="What is done with the mean change of the weights. Default: it is made. "
        'Example: {learningRate: "0.7", momentum: "0.9", nesterov: true}.',
    )


ENTRY = ExchangeEntry(
    name="LocalSGD",
    summary="has a fixed number of logical replicas step by themselves and average now and then",
    source="Stich, 2019; Lin et al., 2020; Douillard et al., 2023",
    block=LocalSGD,
    implementation="batchgrowth_trainer.drivers.all_reduce:train",
    promise="Repeatable",
    replicas=lambda settings: settings.replicas,
    longest_round=lambda settings: settings.every_updates,
    strategy="batchgrowth_trainer.exchange.local_sgd:LocalSGD",
    example={"replicas": 4, "everyUpdates": 4},
    outer_rules=replica_rules("LocalSGD", "localSGD"),
)
