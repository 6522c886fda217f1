"""A table larger than memory: it stays in its file, and a worker reads the rows of its shards."""

import mmap
from pathlib import Path

import numpy as np
import torch
from batchgrowth_trainer.workload import Workload, correct
from torch import Tensor, nn
from torch.utils.data import Dataset

COLUMNS, SOURCES = 1024, 8  # a row is 4 KiB, a page of memory: 1,023 measurements and a class


class Table(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a file of float32, from `first` to before `last`."""

    def __init__(self, path: Path, first: int | None, last: int | None) -> None:
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there; make it with examples/memmap/make_table.py")
        with path.open("rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        pages.madvise(mmap.MADV_RANDOM)  # else the kernel reads 128 KiB around every row
        self.rows = np.frombuffer(pages, np.float32).reshape(-1, COLUMNS)[first:last]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        rows = torch.from_numpy(self.rows[indices])  # the only copy: one shard
        return list(zip(rows[:, :-1], rows[:, -1].long(), strict=True))


def workload(table: str, test: str = "4096", hidden: str = "64") -> Workload:
    """`table` is the file that make_table.py has made; its last `test` rows are for the test."""
    path, held_out, width = Path(table), int(test), int(hidden)
    return Workload(
        model=nn.Sequential(nn.Linear(COLUMNS - 1, width), nn.ReLU(), nn.Linear(width, SOURCES)),
        loss=nn.CrossEntropyLoss(reduction="none"),
        train=Table(path, None, -held_out),
        test=Table(path, -held_out, None),
        metrics={"accuracy": correct},
    )
