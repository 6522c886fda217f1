"""AllReduce: the workers add among themselves, and each takes the step."""

from batchgrowth.extend import ExchangeEntry

ENTRY = ExchangeEntry(
    name="AllReduce",
    summary="lets the workers add gradients among themselves, and each takes the step",
    source="dask-pytorch-ddp's shape, made elastic",
    implementation="batchgrowth_trainer.drivers.all_reduce:train",
)
