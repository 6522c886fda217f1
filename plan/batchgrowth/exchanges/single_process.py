"""SingleProcess: no exchange; one process does it all. The baseline."""

from batchgrowth.extend import ExchangeEntry

ENTRY = ExchangeEntry(
    name="SingleProcess",
    summary="trains in one process, without workers",
    implementation="batchgrowth_trainer.drivers.single_process:train",
    uses_workers=False,
)
