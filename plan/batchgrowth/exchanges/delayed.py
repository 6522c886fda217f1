"""Delayed: gradients are added while the next ones are computed, and used some updates later. Langford et al., 2009."""

from pydantic import Field

from batchgrowth.extend import ExchangeEntry, Model

MOST_UPDATES = 8


class Delayed(Model):
    """How much later a gradient is used."""

    updates: int = Field(
        1,
        ge=0,
        le=MOST_UPDATES,
        description="Update k uses the gradient of the weights before update k - updates, which has been added by "
        "then. The weights depend on it, and not on the workers; 0 hides nothing, and has those of AllReduce. "
        "Default: 1.",
    )


ENTRY = ExchangeEntry(
    name="Delayed",
    summary="adds gradients while the next are computed, and uses them some updates later",
    source="Langford, Smola and Zinkevich, 2009",
    block=Delayed,
    implementation="batchgrowth_trainer.drivers.all_reduce:train",
    promise="Repeatable",
    strategy="batchgrowth_trainer.exchange.delayed:Delayed",
    example={"updates": 2},
)
