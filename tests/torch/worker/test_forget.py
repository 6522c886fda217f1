"""A worker that is asked to forget a run keeps nothing of it, even if it trains or prepares at that moment."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth_trainer.exchange.connections import TOKEN_BYTES, assign_ranks
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.member import Member
from batchgrowth_trainer.worker.messages import Order

SHARDS = 3


@pytest.fixture(params=[service.forget, lambda _: service.abandon_others("another")], ids=["forgotten", "superseded"])
def forget(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The two ways in which a driver has a worker drop the member of a run."""
    for name in ("_MEMBERS", "_STARTS"):
        monkeypatch.setattr(service, name, {})
    return request.param


def test_a_member_that_trains_ends_at_its_next_boundary(small_job: Any, forget: Any) -> None:
    member = service._MEMBERS["run"] = Member(small_job("workload.entrypoint=small:plain").spec, "127.0.0.1")
    shards = list[int]()

    def count() -> None:
        shards.append(member.replica.position.update)
        if len(shards) == SHARDS:
            asyncio.run(forget("run"))

    member.replica.on_shard = count
    [assignment] = assign_ranks([member.listener.address], bytes(TOKEN_BYTES), 60, None)
    outcome = member.train(Order(assignment, generation=1, until=12, evaluated=0, reported=0), lambda _: None, None)
    assert outcome.lost
    assert shards[SHARDS - 1] + 1 == outcome.update < 12
    assert not service._MEMBERS


def test_a_member_that_is_being_built_is_dropped(small_job: Any, forget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[Member]()

    class Built(Member):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            asyncio.run(forget("run"))

        def close(self) -> None:
            super().close()
            closed.append(self)

    worker = SimpleNamespace(address="tcp://127.0.0.1:1", name="7", handlers={})
    monkeypatch.setattr(service, "Member", Built)
    monkeypatch.setattr(service, "get_worker", lambda: worker)
    with pytest.raises(service.NoMember):
        service.prepare_member("run", small_job("workload.entrypoint=small:plain").spec, ())
    assert len(closed) == 1
    assert not service._MEMBERS
    assert not service._PREPARING
