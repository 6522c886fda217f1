"""TopK: each replica sends its largest changes, and keeps the others for later. Basu et al., 2019; Lin et al., 2018."""

from math import ceil
from typing import ClassVar

from pydantic import Field

from batchgrowth.exchanges.rules import every_updates_field, replica_rules, replicas_field
from batchgrowth.extend import DecimalText, ExchangeEntry, Model, Rule, exact


class TopK(Model):
    """Logical replicas, spread over the workers there are; all have the same weights after each exchange."""

    replicas: int = replicas_field(64)
    every_updates: int = every_updates_field(1, "exchange")
    density: DecimalText = Field(
        "0.01",
        description="The part of its changes of weights, the largest, that a replica sends in an exchange; it adds the "
        "others to its next changes. A decimal in quotes, more than 0 and at most 1; one change is sent at least. "
        'Default: "0.01".',
    )

    rules: ClassVar = (
        Rule(
            "density",
            'give a decimal more than 0 and at most 1, such as "0.01"',
            lambda t: 0 < exact(t.density) <= 1,
            "double(self.density) > 0.0 && double(self.density) <= 1.0",
        ),
    )

    def count(self, parameters: int) -> int:
        """The number of changes that a replica of a model with N parameters sends."""
        return max(1, ceil(exact(self.density) * parameters))


ENTRY = ExchangeEntry(
    name="TopK",
    summary="has a fixed number of logical replicas send their largest changes alone, and the others later",
    source="Basu et al., 2019; Lin et al., 2018",
    block=TopK,
    implementation="batchgrowth_trainer.drivers.all_reduce:train",
    promise="Repeatable",
    replicas=lambda settings: settings.replicas,
    keeps="Residual",
    all_connected=True,
    longest_round=lambda settings: settings.every_updates,
    strategy="batchgrowth_trainer.exchange.top_k:TopK",
    example={"replicas": 4, "density": "0.05"},
    outer_rules=replica_rules("TopK", "topK"),
)
