"""GatherScatter: one server holds the model, gathers gradients and scatters weights. Sievert and Shah, 2021."""

from batchgrowth.extend import ExchangeEntry

ENTRY = ExchangeEntry(
    name="GatherScatter",
    summary="has one server hold the model, gather gradients and scatter weights",
    source="Sievert and Shah, 2021",
    implementation="batchgrowth_trainer.drivers.gather_scatter:train",
)
