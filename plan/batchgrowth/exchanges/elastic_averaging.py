"""ElasticAveraging: a spring pulls each replica to a centre, and the centre to the replicas. Zhang et al., 2015."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.exchanges.rules import every_updates_field, replica_rules, replicas_field
from batchgrowth.extend import DecimalText, ExchangeEntry, Model, Rule, exact


class ElasticAveraging(Model):
    """Logical replicas, spread over the workers there are; the centre is evaluated and exported."""

    replicas: int = replicas_field(64)
    every_updates: int = every_updates_field(4, "pull")
    elasticity: DecimalText = Field(
        "0.9",
        description="The part of the way to the mean of the replicas that the centre moves at each pull; a replica "
        "moves a part elasticity / replicas of its way to the centre. A decimal in quotes, at most 1. "
        'Default: "0.9".',
    )

    rules: ClassVar = (
        Rule(
            "elasticity",
            "give a decimal of at most 1",
            lambda e: exact(e.elasticity) <= 1,
            "double(self.elasticity) <= 1.0",
        ),
    )


ENTRY = ExchangeEntry(
    name="ElasticAveraging",
    summary="pulls a fixed number of logical replicas to a centre, and the centre to them",
    source="Zhang, Choromanska and LeCun, 2015",
    block=ElasticAveraging,
    implementation="batchgrowth_trainer.drivers.all_reduce:train",
    promise="Repeatable",
    replicas=lambda settings: settings.replicas,
    keeps="Weights",
    all_connected=True,
    longest_round=lambda settings: settings.every_updates,
    strategy="batchgrowth_trainer.exchange.elastic_averaging:ElasticAveraging",
    example={"replicas": 4, "everyUpdates": 2},
    outer_rules=replica_rules("ElasticAveraging", "elasticAveraging"),
)
