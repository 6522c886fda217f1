"""Dask arrays as a data set: each process computes the chunks that its shards need, and keeps a few."""

from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from math import isnan
from typing import Any

import dask.array as da
import numpy as np
import torch
from batchgrowth.errors import WorkloadError
from torch import Tensor

KEPT_BYTES = 256 << 20
"""Bytes of chunks that a process keeps by default."""


class DaskArrays:
    """The rows of Dask arrays, which are cut along their first axis: `data[i]` is a tuple with row i of each.

    The last array has the targets, as in a `TensorDataset`. A chunk is computed when a row of it is needed, in this
    process and by one thread, whatever scheduler is set; the latest are kept, up to `kept_bytes` in each process.
    Rows of one shard are read chunk by chunk. If chunks hold many rows and do not all fit, most computed rows are not
    used: give `kept_bytes` the size of the arrays, or make chunks of few rows.
    """

    def __init__(self, *arrays: da.Array, kept_bytes: int = KEPT_BYTES) -> None:
        """Raise WorkloadError for an unsuitable array or dtype, or for lengths that differ or are unknown."""
        if not arrays:
            raise WorkloadError("DaskArrays: no array was given; give DaskArrays(inputs, targets)")
        for place, array in enumerate(arrays):
            _check(array, place, arrays[0])
        self._arrays = [_Array(array) for array in arrays]
        self._most = kept_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[int, int], Tensor] = OrderedDict()

    def __len__(self) -> int:
        return self._arrays[0].starts[-1]

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """Return row `index` of each array."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, ...]]:
        """Return the rows at `indices`, in their order. Raises IndexError if a row does not exist."""
        if indices and not 0 <= min(indices) <= max(indices) < len(self):
            raise IndexError(f"rows {min(indices)} to {max(indices)} of {len(self)}")
        return list(zip(*(self._rows(number, indices) for number in range(len(self._arrays))), strict=True))

    def _rows(self, number: int, indices: Sequence[int]) -> list[Tensor]:
        starts = self._arrays[number].starts
        wanted = defaultdict(list)
        for index in set(indices):
            wanted[bisect_right(starts, index) - 1].append(index)
        rows: dict[int, Tensor] = {}
        for chunk, of_chunk in sorted(wanted.items()):
            values = self._chunk(number, chunk)
            # Copies: a row that is a view would keep its whole chunk in memory.
            rows |= {index: values[index - starts[chunk]].clone() for index in of_chunk}
        return [rows[index] for index in indices]

    def _chunk(self, number: int, chunk: int) -> Tensor:
        key = (number, chunk)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        values = self._arrays[number].computed(chunk)
        self._kept[key] = values
        self._bytes += values.nbytes
        # A chunk that is larger than the limit goes at once, too.
        while self._bytes > self._most and self._kept:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return values


class _Array:
    """A Dask array in chunks of whole rows; chunk k has the rows from starts[k] to starts[k + 1]."""

    def __init__(self, array: da.Array) -> None:
        whole = array.rechunk(dict.fromkeys(range(1, array.ndim), -1))
        lengths = [length for length in whole.chunks[0] if length]  # an empty chunk has no row to look up
        numbers = [number for number, length in enumerate(whole.chunks[0]) if length]
        self.starts: list[int] = [0, *accumulate(lengths)]
        self._array = whole
        self._numbers = numbers

    def computed(self, chunk: int) -> Tensor:
        """Return the values of a chunk."""
        block = self._array.blocks[self._numbers[chunk]].compute(scheduler="synchronous")
        # A copy, since torch warns of an array that cannot be written, as a block may be.
        return torch.from_numpy(np.array(block, order="C"))


def _check(array: Any, place: int, first: Any) -> None:
    what = f"DaskArrays: array {place + 1}"
    if not isinstance(array, da.Array):
        raise WorkloadError(
            f"{what} is a {type(array).__name__}; give a Dask array, of a Dask DataFrame its "
            "to_dask_array(lengths=True), and a TensorDataset of what is in memory"
        )
    if array.ndim == 0 or any(isnan(length) for lengths in array.chunks for length in lengths):
        raise WorkloadError(
            f"{what} has the shape {array.shape}, and its length must be known; call its compute_chunk_sizes() first"
        )
    if len(array) != len(first):
        raise WorkloadError(f"{what} has {len(array)} rows and the first has {len(first)}; give one row per example")
    try:
        torch.from_numpy(np.empty(0, array.dtype))
    except TypeError as error:
        raise WorkloadError(f"{what} has the dtype {array.dtype}; convert it, as in .astype('float32')") from error
