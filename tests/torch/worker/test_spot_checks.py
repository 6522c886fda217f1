"""Members in threads, of which one begins to compute wrongly in one bit, or whose code has more than one answer."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.exchange import spot_check
from batchgrowth_trainer.exchange.connections import TOKEN_BYTES, assign_ranks
from batchgrowth_trainer.exchange.spot_check import THE_STATE, answers_of, checksum
from batchgrowth_trainer.replica.flat import Partial
from batchgrowth_trainer.worker.member import Member
from batchgrowth_trainer.worker.messages import MemberOutcome, Order, RowsReport

UNTIL = 12  # updates, of two shards each
EXACT = ["AllReduce", "ParameterServer"]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check after every fourth update of two members, and after every second of three."""
    monkeypatch.setattr(spot_check, "SHARDS_BETWEEN", 4)


@contextmanager
def members(job: Any, count: int) -> Iterator[list[Member]]:
    made = [Member(job.spec, "127.0.0.1") for _ in range(count)]
    try:
        yield made
    finally:
        for member in made:
            member.close()


def trained(group: list[Member], until: int = UNTIL) -> tuple[list[MemberOutcome], list[RowsReport]]:
    """The outcomes of one generation, each member in a thread of its own, and their reports of updates."""
    places = assign_ranks([member.listener.address for member in group], bytes(TOKEN_BYTES), 60, None)
    outcomes: dict[int, MemberOutcome] = {}
    sent = list[Any]()

    def train(rank: int, order: Order) -> None:
        outcomes[rank] = group[rank].train(order, sent.append, None)

    threads = [
        threading.Thread(target=train, args=(rank, Order(place, 1, until, 0, 0))) for rank, place in enumerate(places)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes[rank] for rank in range(len(group))], [one for one in sent if isinstance(one, RowsReport)]


def job_of(small_job: Any, *settings: str) -> Any:
    return small_job("workload.entrypoint=small:plain", "exchange.type=AllReduce", *settings)


def plant(member: Member, flip: Callable[[Partial, int], None]) -> None:
    """Let the member call `flip(sum, update)` after it has computed a shard of the update."""
    compute = member.replica._compute_shard

    def faulty(step: Any, *arguments: Any, **named: Any) -> Partial:
        done = compute(step, *arguments, **named)
        flip(done, step.position.update)
        return done

    member.replica._compute_shard = faulty  # type: ignore[method-assign]


def flipped_from(first: int) -> Callable[[Partial, int], None]:
    """From that update on, the lowest bit of the first number of each row is wrong."""

    def flip(done: Partial, update: int) -> None:
        if update >= first:
            done.row[:1].view(torch.int32).bitwise_xor_(1)

    return flip


@pytest.mark.parametrize("exchange", EXACT)
@pytest.mark.parametrize("faulty", [0, 2])
def test_a_member_that_stands_alone_is_named(small_job: Any, exchange: str, faulty: int) -> None:
    """All members name it, at the next check."""
    with members(job_of(small_job, f"exchange.type={exchange}"), 3) as group:
        plant(group[faulty], flipped_from(5))
        outcomes, _ = trained(group)
        findings = [outcome.finding for outcome in outcomes]
        found = findings[0]
        assert found is not None
        assert [found] * 3 == findings
        covered = found.covered
        assert 0 <= covered <= 5 < found.update <= UNTIL
        assert ((faulty,), "the gradient of model.0.weight") == (found.wrong, found.what)


def test_two_members_that_contradict_each_other_leave_it_to_a_judge(small_job: Any) -> None:
    with members(job_of(small_job), 3) as (*group, judge):
        plant(group[1], flipped_from(5))
        outcomes, _ = trained(group)
        found = outcomes[0].finding
        assert found is not None
        assert ((), 2) == (found.wrong, len(set(found.answers)))
        model = {name: vector.clone() for name, vector in group[0].replica.model_tensors().items()}
        judge.replica.restore(group[0].replica.snapshot())
        assert [found.answers[0]] == answers_of(judge.replica, found.step, found.shard, 1)
        assert all(torch.equal(model[name], vector) for name, vector in judge.replica.model_tensors().items())


def test_a_bit_that_flips_once_is_a_finding_if_it_flips_in_a_check(small_job: Any) -> None:
    """The member contradicts itself, so no judge is needed."""
    with members(job_of(small_job), 2) as group:
        left = [True]
        computed = group[1].replica.computed_aside

        def once(*arguments: Any) -> Partial:
            done = computed(*arguments)
            if left.pop() if left else False:
                done.row[:1].view(torch.int32).bitwise_xor_(1)
            return done

        group[1].replica.computed_aside = once  # type: ignore[method-assign]
        outcomes, _ = trained(group)
        assert [(1,)] * 2 == [outcome.finding and outcome.finding.wrong for outcome in outcomes]


@pytest.mark.parametrize(("count", "wrong"), [(3, (1,)), (2, (0, 1))])
def test_a_member_with_another_state_is_found(small_job: Any, count: int, wrong: tuple[int, ...]) -> None:
    """Of two, nobody knows which is right."""
    with members(job_of(small_job), count) as group:
        commit = group[1].replica.commit

        def wrongly(step: Any, total: Any) -> Any:
            done = commit(step, total)
            group[1].replica.parameters.vector.data[:1].view(torch.int32).bitwise_xor_(1)
            return done

        group[1].replica.commit = wrongly  # type: ignore[method-assign]
        outcomes, _ = trained(group)
        found = outcomes[0].finding
        assert found is not None
        assert (THE_STATE, wrong) == (found.what, found.wrong)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_code_with_several_answers_stops_with_the_shard_the_update_and_the_parameter(
    small_job: Any, count: int
) -> None:
    draw = torch.Generator().manual_seed(1)

    def fickle(done: Partial, update: int) -> None:
        if update >= 5:
            done.of_parameters[1].add_(torch.rand((), generator=draw))

    with members(job_of(small_job), count) as group:
        for member in group:
            plant(member, fickle)
        outcomes, _ = trained(group)
        errors = [outcome.error for outcome in outcomes]
        assert [WorkloadError] * count == [type(error) for error in errors]
        text = str(errors[0])
        assert text.startswith("update ")
        assert ", shard " in text
        assert "the gradient of model.0.bias has other bits when it is computed again" in text


def test_a_lone_member_whose_bit_flips_once_is_found(small_job: Any) -> None:
    """It computes the shard twice, and three times more once that differs."""
    with members(job_of(small_job), 1) as group:
        computed = group[0].replica.computed_aside
        flips = [False, True]

        def once(*arguments: Any) -> Partial:
            done = computed(*arguments)
            if flips and flips.pop(0):
                done.row[:1].view(torch.int32).bitwise_xor_(1)
            return done

        group[0].replica.computed_aside = once  # type: ignore[method-assign]
        [outcome], _ = trained(group)
        found = outcome.finding
        assert found is not None
        assert ((0,), "the gradient of model.0.weight") == (found.wrong, found.what)


@pytest.mark.parametrize(("settings", "checks"), [((), 3), (("verify=false",), 0), (("exchange.type=LocalSGD",), 0)])
def test_checks_are_counted_and_can_be_switched_off(small_job: Any, settings: tuple[str, ...], checks: int) -> None:
    """Each fourth update of two members has one; and the weights have the same bits with and without them."""
    with (
        members(job_of(small_job, *settings), 2) as group,
        members(job_of(small_job, *settings, "verify=false"), 2) as unchecked,
    ):
        outcomes, reports = trained(group)
        trained(unchecked)
        assert [MemberOutcome(UNTIL)] * 2 == outcomes
        for one, other in zip(group, unchecked, strict=True):
            expected = other.replica.tensors()
            assert expected.keys() == one.replica.tensors().keys()
            assert all(torch.equal(expected[name], vector) for name, vector in one.replica.tensors().items())
        assert checks == sum(report.figures.checks for report in reports)
        covered = [report.figures.checked_update for report in reports if report.figures.checked_update is not None]
        assert covered[-1:] == [UNTIL] * (checks > 0)  # rank 0 alone reports it
        assert [UNTIL if checks else 0] * 2 == [member.covered for member in group]


def test_members_of_another_arithmetic_are_not_compared(small_job: Any) -> None:
    """The same difference is no finding between an AVX2 and an AVX512."""
    with members(job_of(small_job), 3) as group:
        replica = group[2].replica
        replica.arithmetic = replace(replica.arithmetic, digest="0" * 64)
        plant(group[2], flipped_from(0))
        outcomes, _ = trained(group)
        assert [MemberOutcome(UNTIL)] * 3 == outcomes


def test_the_part_is_that_of_the_crew_that_differs(small_job: Any) -> None:
    """The other crew computes each part otherwise, as another processor does."""

    def last_bit(done: Partial, update: int) -> None:
        if update >= 5:
            done.row[-1:].view(torch.int32).bitwise_xor_(1)

    with members(job_of(small_job), 4) as group:
        replica = group[3].replica
        replica.arithmetic = replace(replica.arithmetic, digest="0" * 64)
        plant(group[3], flipped_from(0))
        plant(group[0], last_bit)
        outcomes, _ = trained(group)
        found = outcomes[0].finding
        assert found is not None
        assert ((0,), "the loss") == (found.wrong, found.what)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool])
def test_each_bit_changes_the_checksum(dtype: torch.dtype) -> None:
    vector = torch.ones(9).to(dtype)
    before = checksum(vector)
    vector.view(torch.uint8)[3:4] ^= 1
    assert before != checksum(vector)
