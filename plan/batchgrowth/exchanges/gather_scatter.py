"""GatherScatter: one server holds the model, gathers gradients and scatters weights. Sievert and Shah, 2021."""

from pydantic import Field

from batchgrowth.extend import ExchangeEntry, Model


class GatherScatter(Model):
    """What the server does about slow workers."""

    backups: bool = Field(
        False,
        description="Whether an idle worker repeats the part of an update that a slow worker still computes; the first "
        "copy counts, and the slow worker is left out until its own has ended. The weights do not depend on it. "
        "Default: false.",
    )


ENTRY = ExchangeEntry(
    name="GatherScatter",
    summary="has one server hold the model, gather gradients and scatter weights",
    source="Sievert and Shah, 2021",
    block=GatherScatter,
    implementation="batchgrowth_trainer.drivers.gather_scatter:train",
    example={"backups": True},
)
