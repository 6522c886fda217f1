"""Data that Dask computes, chunk by chunk."""

import dask.array as da
from batchgrowth_trainer import DaskArrays, Workload, correct
from torch import nn

EXAMPLES, FEATURES, CLASSES = 240, 6, 3


def data(seed: int) -> DaskArrays:
    """Rows that are drawn and halved when they are needed; their class is that of their largest number."""
    drawn = da.random.default_rng(seed).normal(size=(EXAMPLES, FEATURES), chunks=(40, 4))
    inputs = (drawn / 2).astype("float32")
    return DaskArrays(inputs, inputs[:, :CLASSES].argmax(axis=1), kept_bytes=4000)


def workload() -> Workload:
    return Workload(
        model=nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, CLASSES)),
        loss=nn.CrossEntropyLoss(reduction="none"),
        train=data(1),
        test=data(2),
        metrics={"accuracy": correct},
    )
