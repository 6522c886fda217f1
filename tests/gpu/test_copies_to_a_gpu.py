"""Batches reach a GPU whole, from pinned memory, and while the process goes on."""

import torch
from batchgrowth_trainer.replica.data import to_device


def test_what_arrives_is_what_was_read() -> None:
    """Also if the tensor on the CPU is gone before the copy has ended."""
    device = torch.device("cuda")
    expected = [torch.full((1 << 20,), float(number)) for number in range(20)]
    arrived = [to_device(tensor.clone(), device) for tensor in expected]

    assert all(torch.equal(there, here.cpu()) for there, here in zip(expected, arrived, strict=True))
