"""Parameters and buffers as views of flat vectors."""

import math

import pytest
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.replica.flat import FlatBuffers, FlatParameters
from torch import Tensor, nn

CPU = torch.device("cpu")


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(5, 3, bias=False), nn.Linear(3, 5, bias=False)
        self.decode.weight = nn.Parameter(torch.empty(5, 3))
        self.again = nn.Linear(5, 3, bias=False)
        self.again.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x) + self.again(x)


class Buffered(nn.Module):
    """Buffers of every kind; `step` changes them as users' modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("constant", torch.tensor([0.1, 1 / 3, 1e30]))
        self.register_buffer("mask", torch.triu(torch.full((3, 3), -math.inf), 1))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("large", torch.tensor(2**40 + 1))
        self.register_buffer("seen", torch.tensor(False))
        self.register_buffer("mean", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("nothing", None)

    def step(self, value: float) -> None:
        self.count += 1
        self.seen |= True
        self.mean += value
        self.replaced = self.replaced + value


def change(buffers: FlatBuffers, model: Buffered, start: dict[torch.dtype, Tensor], examples: int) -> Tensor:
    buffers.restore(start)
    model.step(float(examples))
    row = torch.empty(buffers.length)
    buffers.change_since(start, examples, row)
    return row


def test_parameters_become_views_that_keep_their_values() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    expected = [p.detach().clone() for p in model.parameters()]
    flat = FlatParameters(model, CPU)
    assert all(torch.equal(a, b) for a, b in zip(expected, model.parameters(), strict=True))
    flat.vector.data.zero_()
    assert all(not p.any() for p in model.parameters())
    assert all(p.data_ptr() % 64 == 0 for p in model.parameters())


def test_a_shared_weight_is_laid_out_once_and_gets_the_gradient_of_both_uses() -> None:
    model = Tied()
    flat = FlatParameters(model, CPU)
    assert [span.name for span in flat.spans] == ["encode.weight", "decode.weight"]
    assert model.again.weight is model.encode.weight
    row = torch.zeros(flat.length)
    flat.collect_into(flat.gradient_views(row))
    model(torch.ones(1, 5)).sum().backward()
    assert torch.equal(torch.full((15,), 2.0), row[:15])


def test_backward_adds_into_the_row_and_nowhere_else() -> None:
    model = nn.Linear(3, 2)
    flat = FlatParameters(model, CPU)
    row = torch.zeros(flat.length)
    flat.collect_into(flat.gradient_views(row))
    model(torch.ones(1, 3)).sum().backward()
    assert torch.equal(torch.ones(6), row[:6])
    assert model.weight.grad is not None
    assert row.data_ptr() == model.weight.grad.data_ptr()


def test_frozen_parameters_stay_as_they_are() -> None:
    """The optimizer skips a frozen part: no weight decay, no change of dtype."""
    model = nn.Sequential(nn.Linear(3, 4).double(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    flat = FlatParameters(model, CPU)
    assert [span.name for span in flat.spans] == ["1.weight", "1.bias"]
    assert torch.float64 is model[0].weight.dtype
    assert torch.equal(before, model[0].weight)


def test_buffers_become_views_one_vector_per_dtype() -> None:
    model = Buffered()
    buffers = FlatBuffers(model, CPU)
    assert set(buffers.vectors) == {torch.float32, torch.float64, torch.int64, torch.bool}
    buffers.vectors[torch.int64].zero_()
    assert (int(model.count), int(model.large)) == (0, 0)


def test_a_shared_buffer_has_one_home() -> None:
    model = nn.Module()
    model.a, model.b = Buffered(), Buffered()
    model.b.mean = model.a.mean
    buffers = FlatBuffers(model, CPU)
    model.a.mean += 1
    assert len(buffers.spans[torch.float64]) == 1
    assert model.a.mean is model.b.mean


@pytest.mark.fault("D07")
def test_changes_of_shards_are_averaged_by_their_examples() -> None:
    model = Buffered()
    buffers = FlatBuffers(model, CPU)
    start = buffers.clone()
    total = change(buffers, model, start, 3) + change(buffers, model, start, 1)
    buffers.restore(start)
    buffers.advance(total / 4)
    assert (3 * 3 + 1 * 1) / 4 == model.mean[0].item() == model.replaced[0].item()
    assert int(model.count) == 8
    assert bool(model.seen)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_a_small_integer_that_falls_is_averaged_too(dtype: torch.dtype) -> None:
    """The difference of two unsigned numbers has a sign all the same."""
    model = nn.Module()
    model.register_buffer("left", torch.tensor([5], dtype=dtype))
    buffers = FlatBuffers(model, CPU)
    start = buffers.clone()
    total = torch.zeros(buffers.length)
    model.left -= 2
    buffers.change_since(start, 1, total)
    buffers.restore(start)
    buffers.advance(total / 2)

    assert model.left.tolist() == [4]


def test_a_buffer_that_is_replaced_comes_back_to_its_view() -> None:
    model = Buffered()
    buffers = FlatBuffers(model, CPU)
    view = model.replaced
    change(buffers, model, buffers.clone(), 2)
    assert view is model.replaced
    assert view.tolist() == [2.0, 2.0]


def test_a_buffer_that_is_deleted_comes_back_too() -> None:
    model = Buffered()
    buffers = FlatBuffers(model, CPU)
    start = buffers.clone()
    del model.replaced
    buffers.change_since(start, 1, torch.zeros(buffers.length))
    buffers.restore(start)
    assert model.replaced.tolist() == [0.0, 0.0]


def test_a_buffer_that_is_resized_in_place_is_refused() -> None:
    """It would write over the buffers behind it."""
    model = Buffered()
    buffers = FlatBuffers(model, CPU)
    start = buffers.clone()
    model.mean.resize_(40)
    with pytest.raises(WorkloadError, match=r"the buffer model\.mean, of shape \(2,\), is resized to \(40,\)"):
        buffers.change_since(start, 1, torch.zeros(buffers.length))


def test_whole_numbers_that_are_replaced_by_fractions_are_refused() -> None:
    model = Buffered()
    buffers = FlatBuffers(model, CPU)
    start = buffers.clone()
    model.count = model.count * 0.9 + 0.1
    with pytest.raises(WorkloadError, match=r"model\.count, of torch\.int64, is replaced by one of torch\.float32"):
        buffers.change_since(start, 1, torch.zeros(buffers.length))


def test_restoring_also_takes_back_a_replacement() -> None:
    model = Buffered()
    buffers = FlatBuffers(model, CPU)
    start = buffers.clone()
    model.step(5.0)
    buffers.restore(start)
    assert model.replaced.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["constant", "mask", "large"])
def test_constant_buffers_do_not_drift(name: str) -> None:
    """Neither do buffers with infinities, such as a transformer's mask, or with integers beyond float32."""
    model = Buffered()
    buffers = FlatBuffers(model, CPU)
    expected = getattr(model, name).clone()
    for _ in range(50):
        start = buffers.clone()
        total = change(buffers, model, start, 7) + change(buffers, model, start, 6)
        buffers.restore(start)
        buffers.advance(total / 13)
    assert torch.equal(expected, getattr(model, name))


def test_a_model_without_buffers_has_empty_ones() -> None:
    buffers = FlatBuffers(nn.Linear(2, 2), CPU)
    assert (buffers.length, buffers.vectors) == (0, {})


@pytest.mark.parametrize("start", [math.inf, torch.finfo(torch.float32).max])
def test_an_observer_of_a_minimum_begins_at_infinity_and_becomes_a_number(start: float) -> None:
    """The first values of several shards are averaged; a minimum of 0 counts, and a mask does not change."""
    model = nn.Module()
    model.register_buffer("least", torch.tensor([start, start, math.inf, -math.inf]))
    buffers = FlatBuffers(model, CPU)
    begun, total = buffers.clone(), torch.zeros(buffers.length)
    for seen, examples in ((2.0, 3), (6.0, 1)):
        buffers.restore(begun)
        model.least = torch.minimum(model.least, torch.tensor([seen, 0.0, math.inf, math.inf]))
        row = torch.empty(buffers.length)
        buffers.change_since(begun, examples, row)
        total += row
    buffers.restore(begun)
    buffers.advance(total / 4)
    torch.testing.assert_close(model.least, torch.tensor([3.0, 0.0, math.inf, -math.inf]))
