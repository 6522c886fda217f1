"""Which member's state a run ends with, and how a member that trains is asked for its state."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from batchgrowth.position import Position
from batchgrowth_trainer.drivers.generations import States
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.pool.worker_pool import WorkerPool
from batchgrowth_trainer.record.snapshot import PackedSnapshot, Snapshot, pack_snapshot
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import MemberOutcome


class Asked:
    """Calls without an answer, with the workers that were asked; it stands for a pool, its calls, and a run."""

    where = "run, update 12"

    def __init__(self) -> None:
        self.calls, self.run_id, self.asked = self, "", list[str]()
        self.reported, self.position, self.totals = 12, None, self
        self.evaluated = 1

    def ask(self, *_: Any, workers: list[str]) -> dict[str, Any]:
        self.asked += workers
        return {}

    def evaluation_due(self, _position: Any) -> bool:
        return False


def test_it_ends_with_a_member_that_has_judged_the_last_evaluation() -> None:
    """Those that lost a peer while they evaluated have the update alone; if there is no other, they evaluate again."""
    pool = Asked()
    states = States(cast(RunState, pool), cast(WorkerPool, pool), lambda _: None)
    assert states.is_judged, "without a member there is nothing to judge"
    states.take({"a": MemberOutcome(12, is_judged=False), "b": MemberOutcome(11)})
    assert not states.is_judged
    states.take({"b": MemberOutcome(12)})
    assert states.is_judged
    states.trained()
    assert pool.asked == ["b"]
    states.take({"a": MemberOutcome(13, is_judged=False)})
    assert not states.is_judged
    states.take({"a": MemberOutcome(13)})
    assert states.is_judged


def test_nothing_is_saved_or_taken_from_a_member_whose_step_failed_midway() -> None:
    """It is at the update that its step would have ended, which another may have, or else the last checkpoint."""
    pool = Asked()
    states = States(cast(RunState, pool), cast(WorkerPool, pool), lambda _: None)
    states.take({"a": MemberOutcome(12)})
    states.take({"a": MemberOutcome(13, is_whole=False), "b": MemberOutcome(12)})
    assert states.updates == {"b": 12}
    states.trained()
    assert pool.asked == ["b"]
    states.take({"b": MemberOutcome(12, is_whole=False)})
    states.release({"a", "b"})
    assert pool.asked == ["b"]


class Training:
    """WorkerPool, calls and run in one, whose members answer when the test says so; `saved` are the updates saved."""

    def __init__(self) -> None:
        self.calls, self.totals, self.run_id, self.reported, self.evaluated = self, self, "", 0, 0
        self.asked, self.saved = list[str](), list[int]()
        self.answers: dict[str, Any] | None = None

    def begin(self, function: Any, *_: Any, worker: str) -> Any:
        assert service.take_snapshot is function
        self.asked.append(worker)
        return lambda: self.answers

    def ask(self, function: Any, *_: Any, workers: list[str]) -> dict[str, Any]:
        assert service.take_snapshot is function
        return {workers[0]: state(20)}

    def save(self, snapshot: Snapshot) -> None:
        self.saved.append(snapshot.position.update)


def state(update: int) -> tuple[PackedSnapshot, tuple[()]]:
    """What a member answers: its state after that update, and no reports."""
    return pack_snapshot(Snapshot(Position(update), {})), ()


@pytest.mark.fault("C09")
def test_nothing_waits_for_the_state_of_a_member_that_trains() -> None:
    """It is asked once, though a checkpoint stays due, and again after it has answered, or was lost."""
    world = Training()
    states = States(cast(RunState, world), cast(WorkerPool, world), lambda _: None)
    states.save_while_it_trains("a", due=False)
    assert world.asked == []
    for _ in range(3):
        states.save_while_it_trains("a", due=True)
    assert (world.asked, world.saved) == (["a"], [])

    world.answers = {"a": state(12)}
    states.save_while_it_trains("a", due=False)
    assert world.saved == [12]
    states.save_while_it_trains("a", due=True)
    world.answers = {}
    states.save_while_it_trains("a", due=True)
    states.save_while_it_trains("a", due=True)
    assert (world.asked, world.saved) == (["a"] * 3, [12])


@pytest.mark.parametrize("saves", [False, True])
def test_a_state_that_comes_too_late_is_not_saved(saves: bool) -> None:
    """After the end of its generation, or once a newer one was saved."""
    world = Training()
    states = States(cast(RunState, world), cast(WorkerPool, world), lambda _: None)
    states.save_while_it_trains("a", due=True)
    if saves:
        states.save("b")
    else:
        states.expect_none()
    world.answers = {"a": state(12)}
    states.save_while_it_trains("a", due=False)
    assert [20] * saves == world.saved


def test_a_worker_without_a_member_has_no_state_to_save() -> None:
    """As one that prepares, or whose member another run has dropped; those of the others are found."""

    def ask(_function: Any, _run: str, *, workers: list[str], seconds: float) -> dict[str, Any]:
        if workers == ["a"]:
            raise service.NoMember("another run uses the same cluster")
        return dict.fromkeys(workers, MemberOutcome(12))

    pool: Any = SimpleNamespace(calls=SimpleNamespace(ask=ask), run_id="", registered={"a", "b"})
    states = States(pool, pool, lambda _: None)
    states.take({"a": MemberOutcome(12)})
    states.find(1.0)
    assert states.updates == {"b": 12}
