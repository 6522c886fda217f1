"""Compression: what is sent in fewer bytes has the same bits for any number of members, and for one process."""

from typing import Any

import pytest
import small
import torch
from batchgrowth.shards import lay_out
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.drivers.single_process import only_one
from batchgrowth_trainer.exchange import compression as module
from batchgrowth_trainer.exchange.all_reduce import Reduction
from batchgrowth_trainer.exchange.compression import BLOCK, BFloat16, Coding, Int8, compression_in
from batchgrowth_trainer.exchange.group import LoneGroup
from hypothesis import example, given
from hypothesis import strategies as st
from threads import Fake, bytes_by_member, together
from torch import Tensor

CODINGS = [BFloat16(), Int8()]


def numbers(length: int, seed: int = 0) -> Tensor:
    """With magnitudes from 1e-8 to 1e8."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(length, generator=draw) * 10.0 ** torch.randint(-8, 9, (length,), generator=draw)


@pytest.mark.parametrize("coding", CODINGS)
@example(7, 127.0)
@example(3000, 126.5)
@given(st.integers(0, 3 * BLOCK), st.floats(1, 1000, width=32))
def test_rounded_numbers_are_packed_without_loss(coding: Coding, length: int, largest_number: float) -> None:
    vector = numbers(length).clamp(-largest_number, largest_number)
    vector[:1] = largest_number
    before = vector.clone()
    coding.quantize(vector)
    packed, unpacked = coding.pack(vector), torch.empty(length)
    coding.unpack(packed, unpacked)
    assert coding.size(length) == packed.nbytes
    assert torch.equal(vector, unpacked)
    coding.quantize(unpacked)
    assert torch.equal(vector, unpacked)
    largest = before.abs().amax() if length else torch.tensor(0.0)
    assert bool(((vector - before).abs() <= largest / 127).all())


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_so(coding: Coding, value: float) -> None:
    """So the update is refused."""
    vector = numbers(2000)
    vector[1500] = value
    coding.quantize(vector)
    assert not torch.isfinite(vector).all()


@pytest.mark.parametrize("coding", CODINGS)
def test_zeros_and_the_smallest_and_largest_numbers(coding: Coding) -> None:
    for value in (0.0, 1e-45, 3.3e38):
        vector = torch.tensor([value, -value, 0.0])
        coding.quantize(vector)
        torch.testing.assert_close(vector, torch.tensor([value, -value, 0.0]), rtol=0.01, atol=1e-40)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("exponent", [-148, -144, -143, -141, -133, -126, -118])
def test_vanishing_numbers_are_packed_without_loss(coding: Coding, exponent: int) -> None:
    """Below 2^-126 a float has fewer digits, so a scale may be rounded too."""
    vector = torch.arange(-255.0, 256.0) * 2.0 ** (exponent - 7)
    coding.quantize(vector)
    unpacked = torch.empty_like(vector)
    coding.unpack(coding.pack(vector), unpacked)
    assert torch.equal(vector, unpacked)


def summed(rows: list[Tensor], lo: int, hi: int, coding: Coding) -> Tensor:
    """The node [lo, hi) of the tree, rounded at each node."""
    if hi - lo == 1:
        total = rows[lo].clone()
    else:
        middle = lo + (1 << (hi - lo - 1).bit_length() - 1)
        total = summed(rows, lo, middle, coding) + summed(rows, middle, hi, coding)
    coding.quantize(total)
    return total


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize(("members", "grid_rows"), [(1, 1), (2, 1), (3, 1), (5, 1), (8, 3)])
@pytest.mark.parametrize("length", [5, 3000, 40_000])
def test_the_total_does_not_depend_on_the_members(
    coding: Coding, members: int, grid_rows: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent straight and in slices, in a mesh and in a grid; in a half and a quarter of the bytes."""
    shards = 11
    rows = [numbers(length, shard) for shard in range(shards)]

    def act(member: Fake) -> Tensor:
        mine = [summed(rows, lo, hi, coding) for lo, hi in lay_out(shards, members).nodes[member.rank]]
        reduced = Reduction(member if members > 1 else LoneGroup(), coding)(mine, shards, torch.empty(length))
        return reduced.total.clone()

    expected = summed(rows, 0, shards, coding)
    totals, groups = together(members, act, grid_rows)
    assert all(torch.equal(expected, total) for total in totals)
    plain = sum(bytes_by_member(shards, members, length, rows=grid_rows))
    sent = sum(group.bytes_sent for group in groups)
    assert pytest.approx(plain * coding.width / 4, rel=0.02, abs=4 * shards * members) == sent


@pytest.mark.parametrize("compression", ["BFloat16", "Int8"])
def test_a_row_is_rounded_but_for_its_tail(small_job: Any, make_replica: Any, compression: str) -> None:
    """The loss, and what batch norm has seen, are not gradients."""

    def total(job: BatchGrowthJob) -> tuple[Tensor, int]:
        replica = make_replica(job, small.plain())
        step = replica.plan.step_at(replica.position)
        [node] = replica.partials(step, (0, step.shards))
        return only_one([node.row], step.shards, node.row).clone(), replica.parameters.length

    exact, cut = total(small_job("exchange.type=SingleProcess"))
    coded, _ = total(small_job(f"exchange={{type: SingleProcess, compression: {compression}}}"))
    assert torch.equal(exact[cut:], coded[cut:])
    assert not torch.equal(exact[:cut], coded[:cut])
    torch.testing.assert_close(exact[:cut], coded[:cut], rtol=0, atol=0.02 * float(exact[:cut].abs().max()))


@pytest.mark.parametrize(("compression", "error"), [("BFloat16", 2**-9), ("Int8", 0.02)])
def test_the_error_of_rounding_is_measured(
    small_job: Any, make_replica: Any, compression: str, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a second, without another bit in the sums."""

    def summed(job: BatchGrowthJob) -> tuple[Tensor, float | None]:
        replica = make_replica(job, small.plain())
        step = replica.plan.step_at(replica.position)
        [node] = replica.partials(step, (0, step.shards))
        compression = compression_in(replica)
        return node.row.clone(), None if compression is None else compression.error

    job = small_job(f"exchange={{type: SingleProcess, compression: {compression}}}")
    row, found = summed(job)
    assert found is not None
    assert 0 < found < error
    monkeypatch.setattr(module, "_MEASURE_SECONDS", 0.0)
    each, last = summed(job)
    assert torch.equal(row, each)
    assert last not in (None, found)
    assert summed(small_job("exchange.type=SingleProcess"))[1] is None
