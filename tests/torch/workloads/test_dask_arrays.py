"""Dask arrays as a data set: the right rows, of no more chunks than are needed, computed in this process."""

from collections import Counter
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer import DaskArrays
from batchgrowth_trainer.replica.data import fetch
from batchgrowth_trainer.user_code import load_workload
from batchgrowth_trainer.workload import Dataset

VALUES = np.arange(60, dtype="float32").reshape(20, 3)
LABELS = np.arange(20)


class Counted:
    """VALUES and LABELS as Dask arrays, and how often each chunk of VALUES was computed, by its first row."""

    def __init__(self, chunks: Any) -> None:
        self.computed: Counter[int] = Counter()
        self.values = da.from_array(VALUES, chunks=chunks).map_blocks(self._count, dtype="float32")
        self.labels = da.from_array(LABELS, chunks=7)

    def _count(self, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self.computed[int(block[0, 0]) // 3] += 1
        return block


@pytest.mark.parametrize("chunks", [5, (4, 2), (1, 1), 20, ((0, 8, 0, 12), (3,))])
@pytest.mark.parametrize("kept_bytes", [0, 100, 1 << 20])
def test_the_rows_are_those_of_the_arrays(chunks: Any, kept_bytes: int) -> None:
    """Whatever the chunks are, along any axis, and however few of them are kept."""
    counted = Counted(chunks)
    data = DaskArrays(counted.values, counted.labels, kept_bytes=kept_bytes)
    indices = torch.tensor([19, 0, 7, 7, 3])
    inputs, target = fetch(data, indices)

    assert isinstance(data, Dataset)
    assert (len(data), int(data[7][1])) == (20, 7)
    assert np.array_equal(VALUES[indices], inputs)
    assert LABELS[indices].tolist() == target.tolist()


def test_only_chunks_with_a_needed_row_are_computed_and_each_once() -> None:
    counted = Counted(5)
    data = DaskArrays(counted.values, counted.labels)
    assert not counted.computed
    for _ in range(2):
        fetch(data, torch.tensor([6, 16, 8, 17]))

    assert counted.computed == {5: 1, 15: 1}


def test_a_shard_computes_a_chunk_once_even_if_none_is_kept() -> None:
    counted = Counted(5)
    data = DaskArrays(counted.values, counted.labels, kept_bytes=0)
    for _ in range(2):
        fetch(data, torch.tensor([6, 16, 8, 17]))

    assert counted.computed == {5: 2, 15: 2}


def test_the_chunks_used_last_are_kept() -> None:
    """Room for two chunks of 5 rows: the third takes the place of the one that was used longest ago."""
    counted = Counted(5)
    data = DaskArrays(counted.values, kept_bytes=2 * 5 * 3 * 4)
    for row in (0, 5, 0, 10, 0, 5):
        assert row * 3 == data[row][0][0]

    assert counted.computed == {0: 1, 5: 2, 10: 1}


def test_a_row_belongs_to_its_reader() -> None:
    """What changes it, as an augmentation in place, does not change the chunk that is kept."""
    counted = Counted(5)
    data = DaskArrays(counted.values, counted.labels)
    data[6][0].zero_()

    assert VALUES[6].tolist() == data[6][0].tolist()


def test_no_other_scheduler_computes() -> None:
    """As that of the Dask cluster, whose workers these processes are."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the graph went to another scheduler")

    with dask.config.set(scheduler=refused):
        assert DaskArrays(Counted(5).values)[6][0][0] == 18


def computing() -> Any:
    """A workload whose function computes something with Dask."""
    raise WorkloadError(str(dask.base.get_scheduler()))


def test_what_the_function_computes_stays_in_its_process() -> None:
    with pytest.raises(WorkloadError, match="get_sync"):
        load_workload(f"{__name__}:computing", {}, seed=0, examples=None)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ((), "no array was given; give DaskArrays.inputs, targets."),
        ((VALUES,), "array 1 is a ndarray; give a Dask array, .* a TensorDataset of what is in memory"),
        ((da.zeros(3), da.zeros(4)), "array 2 has 4 rows and the first has 3; give one row per example"),
        ((da.zeros(()),), "its length must be known"),
        ((da.zeros(3)[da.zeros(3) > 0],), r"shape \(nan,\), .* call its compute_chunk_sizes\(\) first"),
        ((da.from_array(np.array(["a", "b"])),), r"array 1 has the dtype <U1; convert it, as in \.astype"),
    ],
)
def test_arrays_that_do_not_fit(arrays: tuple[Any, ...], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        DaskArrays(*arrays)


@pytest.mark.parametrize("index", [-1, 20])
def test_a_row_that_is_not_there(index: int) -> None:
    with pytest.raises(IndexError, match="of 20"):
        DaskArrays(Counted(5).values)[index]
