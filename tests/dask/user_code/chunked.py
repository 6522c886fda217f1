"""Data that Dask computes, chunk by chunk: an array, and columns of tables."""

import dask.array as da
import numpy as np
import pandas as pd
import torch
from batchgrowth_trainer import DaskArrays, Workload, correct
from dask import delayed
from torch import Tensor, nn

EXAMPLES, FEATURES, CLASSES, PARTS = 240, 6, 3, 4


def part(seed: int, number: int) -> pd.DataFrame:
    """A partition of a table."""
    drawn = np.random.default_rng((seed, number)).normal(size=(EXAMPLES // PARTS, 3)).astype("float32")
    return pd.DataFrame(drawn, columns=["width", "height", "age"])


def columns(seed: int, *names: str) -> da.Array:
    """Columns of the table, a chunk for each partition, as `to_dask_array(lengths=True)` of a Dask DataFrame has."""
    parts = [delayed(part)(seed, number)[list(names)].to_numpy() for number in range(PARTS)]
    shape = (EXAMPLES // PARTS, len(names))
    return da.concatenate([da.from_delayed(each, shape, "float32") for each in parts])


def data(seed: int) -> DaskArrays:
    """Rows that are drawn and halved when they are needed; their class is that of their largest number.

    Not all of their 9600 bytes are kept, so chunks are computed more than once.
    """
    drawn = da.random.default_rng(seed).normal(size=(EXAMPLES, FEATURES), chunks=(40, 4))
    inputs = (drawn / 2).astype("float32")
    return DaskArrays(inputs, columns(seed, "age", "width"), inputs[:, :CLASSES].argmax(axis=1), kept_bytes=8000)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES + 2, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, CLASSES)
        )  # fmt: skip

    def forward(self, drawn: Tensor, table: Tensor) -> Tensor:
        return self.layers(torch.cat([drawn, table], dim=1))


def workload() -> Workload:
    return Workload(
        model=Net(),
        loss=nn.CrossEntropyLoss(reduction="none"),
        train=data(1),
        test=data(2),
        metrics={"accuracy": correct},
    )
