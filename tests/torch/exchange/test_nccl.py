"""What members with a GPU each hand to NCCL, which takes tensors of the GPU alone; the GPU is only claimed to be there.

NCCL itself is stood in for by queues, and the memory of the GPU by that of the CPU.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import pytest
import torch
from batchgrowth_trainer.exchange import group
from batchgrowth_trainer.exchange.all_reduce import Reduction
from batchgrowth_trainer.exchange.connections import RankAssignment
from batchgrowth_trainer.exchange.group import NcclGroup, spread_state, swap_with_all
from torch import Tensor

# fmt: off
DTYPES = {torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64}
# fmt: on


class OnGpu(Tensor):
    """A tensor of the GPU."""


def to(tensor: Tensor, device: torch.device) -> Tensor:
    assert torch.device("cuda", 0) == device
    return tensor if isinstance(tensor, OnGpu) else tensor.clone().as_subclass(OnGpu)


class Nccl:
    """ProcessGroupNCCL: like it, it refuses tensors of the CPU and other dtypes, and receives when all is launched."""

    sent: dict[tuple[int, int], Queue[Tensor]]

    class Options:
        pass

    def __init__(self, _store: Any, rank: int, _size: int, _options: Any) -> None:
        self._rank = rank
        self._landing: list[tuple[int, Tensor]] = []

    def _start_coalescing(self, _device: Any) -> None:
        self._landing = []

    def send(self, tensors: list[Tensor], peer: int, _tag: int) -> None:
        self.sent[self._rank, peer].put(self._checked(tensors).clone())

    def recv(self, tensors: list[Tensor], peer: int, _tag: int) -> None:
        self._landing.append((peer, self._checked(tensors)))

    def _end_coalescing(self, _device: Any) -> "Nccl":
        return self

    def wait(self) -> None:
        for peer, tensor in self._landing:
            tensor.copy_(self.sent[peer, self._rank].get(timeout=10))

    @staticmethod
    def _checked(tensors: list[Tensor]) -> Tensor:
        [tensor] = tensors
        if not isinstance(tensor, OnGpu):
            raise ValueError("Tensors must be CUDA and dense")
        if tensor.dtype not in DTYPES:
            raise RuntimeError(f"Unconvertible NCCL type {tensor.dtype}")
        return tensor


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[NcclGroup], Any]], list[Any]]:
    """A function that calls one of two members' groups at the same time."""
    monkeypatch.setattr(Nccl, "sent", {(0, 1): Queue(), (1, 0): Queue()}, raising=False)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(group, "_store", lambda _assignment: None)
    monkeypatch.setattr(Tensor, "to", to)
    groups = [NcclGroup(RankAssignment(rank, 2, 1, {}, b"", 10.0, ("127.0.0.1", 1))) for rank in range(2)]

    def call(what: Callable[[NcclGroup], Any]) -> list[Any]:
        with ThreadPoolExecutor(2) as members:
            return list(members.map(what, groups))

    return call


def test_positions_which_are_on_the_cpu(both: Any) -> None:
    """With which members find out who has the most advanced state."""
    for found in both(lambda one: swap_with_all(one, torch.tensor([7 + one.rank, 0]))):
        assert [place.tolist() for place in found] == [[7, 0], [8, 0]]


def test_sums_of_metrics_which_are_on_the_cpu(both: Any) -> None:
    def reduced(one: NcclGroup) -> Tensor:
        row = torch.tensor([1.0 + one.rank, 0.5], dtype=torch.float64)
        return Reduction(one)([row], 2, torch.empty(2, dtype=torch.float64)).total

    assert [total.tolist() for total in both(reduced)] == [[3.0, 1.0]] * 2


def test_a_state_in_dtypes_that_nccl_does_not_know(both: Any) -> None:
    """A vector that is on the GPU is sent and filled where it is."""

    def state(one: NcclGroup) -> list[Tensor]:
        here = [torch.tensor([3, 4], dtype=torch.int16).mul_(1 - one.rank), torch.tensor([one.rank == 0])]
        vectors = [here[0].as_subclass(OnGpu), here[1]]
        spread_state(one, [True, False], vectors)
        return vectors

    for weights, flag in both(state):
        assert weights.tolist() == [3, 4]
        assert flag.tolist() == [True]
