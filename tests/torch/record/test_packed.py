"""Tensors as bytes: every dtype and shape comes back, also where numpy has no such dtype, also through Dask."""

import pytest
import torch
from batchgrowth_trainer.record.snapshot import pack, unpack
from distributed.protocol import deserialize, serialize
from torch import Tensor

ODD = ("q", "bits", "int", "uint", "complex32", "bcomplex32")  # quantized, sub-byte and experimental ones
DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
FLOATS_AND_BOOL = [dtype for dtype in DTYPES if not str(dtype).removeprefix("torch.").startswith(ODD)]
WHOLE = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]


def random_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    ones = torch.randint(0, 2, (count,), dtype=torch.uint8)  # a bool is 0 or 1
    return ones.view(dtype).view(shape)


@pytest.mark.parametrize("shape", [(3, 4), (), (0,), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS_AND_BOOL, *WHOLE], ids=str)
def test_what_was_packed_is_unpacked(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = random_bytes(dtype, shape)
    packed = pack(tensor)
    again = unpack(deserialize(*serialize(packed)))
    assert (dtype, shape) == (again.dtype, tuple(again.shape))
    assert packed.data.tobytes() == pack(again).data.tobytes()


def test_a_view_is_packed_as_what_it_shows() -> None:
    tensor = torch.arange(6.0).view(2, 3).t()
    assert torch.equal(tensor, unpack(pack(tensor)))
    turned = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert torch.equal(turned, unpack(pack(turned)))


def test_what_is_unpacked_can_be_written() -> None:
    packed = pack(torch.zeros(3, dtype=torch.bfloat16))
    packed.data.flags.writeable = False
    unpack(packed).add_(1)
