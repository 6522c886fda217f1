"""Members that stand at the same update, of which only some have what follows from its evaluation."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from batchgrowth.position import Position
from batchgrowth_trainer.exchange.connections import TOKEN_BYTES, assign_ranks
from batchgrowth_trainer.exchange.group import Group, PeerLost, spread_state
from batchgrowth_trainer.exchange.strategy import Setting, Strategy, strategy_of
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.user_errors import DeviceFault
from batchgrowth_trainer.worker import member as of_member
from batchgrowth_trainer.worker.member import Member
from batchgrowth_trainer.worker.messages import EvaluationReport, MemberOutcome, Order, RowsReport
from optimizers_of_ones_own import Failing
from torch import Tensor

JUDGED = (
    "workload.entrypoint=small:plain",
    "evaluation={keepBest: {metric: loss, mode: Minimize}, stopEarly: {metric: accuracy, mode: Maximize, patience: 3}}",
)


@contextmanager
def members(job: Any, count: int) -> Iterator[list[Member]]:
    made = [Member(job.spec, "127.0.0.1") for _ in range(count)]
    try:
        yield made
    finally:
        for member in made:
            member.close()


def generation(group: list[Member], number: int, until: int, evaluated: int) -> tuple[list[MemberOutcome], list[Any]]:
    """The outcomes of one generation, each member in a thread of its own, and their reports of evaluations."""
    outcomes, sent = messages_of(group, number, until, evaluated)
    return outcomes, [one for one in sent if isinstance(one, EvaluationReport)]


def messages_of(group: list[Member], number: int, until: int, evaluated: int) -> tuple[list[MemberOutcome], list[Any]]:
    """The outcomes of one generation, each member in a thread of its own, and what they sent."""
    places = assign_ranks([member.listener.address for member in group], bytes([number]) * TOKEN_BYTES, 60, None)
    outcomes: dict[int, MemberOutcome] = {}
    sent = list[Any]()

    def train(rank: int, order: Order) -> None:
        outcomes[rank] = group[rank].train(order, sent.append, None)

    threads = [
        threading.Thread(target=train, args=(rank, Order(assignment, number, until, evaluated, 0)))
        for rank, assignment in enumerate(places)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes[rank] for rank in range(len(group))], sent


def before_the_evaluation(complete: Snapshot) -> Snapshot:
    """The state of the same update, with nothing judged."""
    tensors = dict(complete.tensors)
    for name in tensors:
        if name.startswith(("best.", "evaluation.")):
            tensors[name] = torch.zeros_like(tensors[name])
    return Snapshot(complete.position, tensors)


def state(member: Member) -> dict[str, list[float]]:
    return {name: vector.tolist() for name, vector in member.replica.tensors().items()}


@pytest.mark.parametrize("ahead", [0, 1])
def test_what_follows_from_an_evaluation_goes_to_those_who_lack_it(small_job: Any, ahead: int) -> None:
    """A member that lost its peers while it evaluated has only the update."""
    with members(small_job(*JUDGED), 3) as (whole, *group):
        [outcome], [report] = generation([whole], 1, until=12, evaluated=0)
        assert (MemberOutcome(12), Position(12, 1, 0)) == (outcome, report.position)
        complete = whole.replica.snapshot()
        for number, member in enumerate(group):
            member.replica.restore(complete if number == ahead else before_the_evaluation(complete))
        outcomes, reports = generation(group, 2, until=12, evaluated=1)
        assert [MemberOutcome(12)] * 2 == outcomes
        assert not reports
        assert state(whole) == state(group[0]) == state(group[1])


@pytest.mark.parametrize("exchange", ["AllReduce", "LocalSGD", "Gossip", "Downpour"])
def test_each_member_reports_the_bytes_that_it_has_sent(
    small_job: Any, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte once since the generation began, whatever its exchange is; rank 0 alone reports the rows."""
    formed, before = list[Group](), list[int]()

    def kept(setting: Setting) -> Strategy:
        formed.append(setting.group)
        before.append(setting.group.bytes_sent)
        return strategy_of(setting)

    monkeypatch.setattr(of_member, "strategy_of", kept)
    with members(small_job("workload.entrypoint=small:plain", f"exchange.type={exchange}"), 2) as group:
        outcomes, sent = messages_of(group, 1, until=12, evaluated=0)
        assert [MemberOutcome(12)] * 2 == outcomes
        reports = [one for one in sent if isinstance(one, RowsReport)]
        assert list(range(1, 13)) == [row.update for report in reports for row in report.rows]
        sent_since = [one.bytes_sent - count for one, count in zip(formed, before, strict=True)]
        assert min(sent_since) > 0
        assert sum(sent_since) == sum(report.figures.bytes_sent for report in reports)


def test_states_that_differ_from_run_to_run_become_one(small_job: Any) -> None:
    """A member has come to the same update by another way than the others."""
    with members(small_job("workload.entrypoint=small:plain", "exchange.type=Downpour"), 3) as group:
        for member in group:
            [outcome], _ = generation([member], 1, until=12, evaluated=1)
            assert MemberOutcome(12) == outcome
        group[1].replica.parameters.vector.data.add_(1)
        assert state(group[0]) != state(group[1])
        outcomes, _ = generation(group, 2, until=12, evaluated=1)
        assert [MemberOutcome(12)] * 3 == outcomes
        assert state(group[0]) == state(group[1]) == state(group[2])


def test_a_member_whose_step_failed_midway_has_no_state(small_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives none away, and trains only after it was given another."""
    job = small_job(
        "workload.entrypoint=small:plain",
        "optimizer={type: Torch, torch: {optimizer: 'optimizers_of_ones_own:Failing'}}",
    )
    with members(job, 1) as [member]:
        [outcome], _ = generation([member], 1, until=5, evaluated=0)
        assert MemberOutcome(5) == outcome
        before, asked = member.replica.snapshot(), member.control.request_snapshot()
        assert asked.result().position.update == 5

        monkeypatch.setattr(Failing, "left", 6)  # of the four parameters in each step
        [outcome], _ = generation([member], 2, until=12, evaluated=0)
        assert isinstance(outcome.error, DeviceFault)
        with pytest.raises(RuntimeError, match="not whole"):
            member.control.request_snapshot().result()
        assert (outcome.update, outcome.is_whole) == (6, False)
        [outcome], _ = generation([member], 3, until=12, evaluated=0)
        assert isinstance(outcome.error, DeviceFault)
        assert outcome.update == 6

        member.replica.restore(before)
        [outcome], _ = generation([member], 4, until=12, evaluated=0)
        assert MemberOutcome(12) == outcome


def test_a_state_that_came_in_part_is_none(small_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that sent it has died; the member can go on from that of another, if there is one."""

    def broken(group: Group, holds: Sequence[bool], vectors: Sequence[Tensor]) -> None:
        spread_state(group, holds, vectors[:1])
        raise PeerLost("rank 0 is gone")

    with members(small_job("workload.entrypoint=small:plain"), 2) as (ahead, behind):
        generation([ahead], 1, until=12, evaluated=0)
        with monkeypatch.context() as patched:
            patched.setattr(of_member, "spread_state", broken)
            outcomes, _ = generation([ahead, behind], 2, until=13, evaluated=1)
        assert [MemberOutcome(12, "rank 0 is gone"), MemberOutcome(0, "rank 0 is gone", is_whole=False)] == outcomes
        [outcome], _ = generation([behind], 3, until=13, evaluated=1)
        assert isinstance(outcome.error, DeviceFault)
        outcomes, _ = generation([ahead, behind], 4, until=13, evaluated=1)
        assert [MemberOutcome(13)] * 2 == outcomes
        assert state(ahead) == state(behind)


def test_an_evaluation_that_only_the_driver_knows_is_repeated(small_job: Any) -> None:
    """All members that evaluated have died; the driver has their report."""
    with members(small_job(*JUDGED), 3) as (whole, *group):
        [outcome], [report] = generation([whole], 1, until=12, evaluated=0)
        assert outcome.is_judged
        for member in group:
            member.replica.restore(before_the_evaluation(whole.replica.snapshot()))
        outcomes, [again] = generation(group, 2, until=12, evaluated=1)
        assert [MemberOutcome(12)] * 2 == outcomes
        assert report.values == again.values
        assert state(whole) == state(group[0]) == state(group[1])
