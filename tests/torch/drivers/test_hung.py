"""Workers that hang during a generation: the state of those that answer is saved before any is restarted."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth_trainer.drivers import generations
from batchgrowth_trainer.drivers.generations import Generation, GenerationsDriver
from batchgrowth_trainer.pool import membership
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import MemberOutcome

CHECKPOINT = 10


class World:
    """WorkerPool, calls and run in one: what the driver does, in its order, goes into `done`."""

    run_id = "run"
    where = "run, update 12"
    spec = SimpleNamespace(patience_seconds=30.0)

    def __init__(self) -> None:
        self.calls, self.leaving, self.totals = self, set[str](), self
        self.note, self.evaluated, self.reported, self.saved_update = print, 0, 0, CHECKPOINT
        self.registered, self.silent, self.overdue = {"a", "b", "c", "idle"}, set[str](), set[str]()
        self.done = list[tuple[str, str]]()

    def hung(self) -> set[str]:
        found, self.overdue = self.overdue, set()
        return found

    def answering(self, addresses: Collection[str]) -> set[str]:
        return self.registered.intersection(addresses) - self.silent

    def ask_whether_alive(self, addresses: Collection[str]) -> None:
        assert {"a", "b", "c"} == {*addresses}

    def restart(self, addresses: Collection[str], _note: Any, why: str = "does not answer") -> None:
        assert why in ("does not answer", membership.STUCK)
        self.done += [("restart", address) for address in sorted(addresses)]

    def notify(self, function: Any, *_: Any, worker: str) -> None:
        assert service.cancel_generation is function
        self.done.append(("cancel", worker))

    def ask(self, function: Any, *_: Any, workers: list[str]) -> dict[str, Any]:
        assert service.take_snapshot is function
        self.done.append(("save", workers[0]))
        self.saved_update = 12
        return {}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def present() -> Generation:
    return Generation(3, ["a", "b", "c"])


@pytest.fixture
def driver(world: World) -> GenerationsDriver:
    unused: Any = SimpleNamespace()
    run: Any = world
    return GenerationsDriver(run, run, unused, "127.0.0.1")


CANCELLED = [("cancel", "a"), ("cancel", "b"), ("cancel", "c")]


@pytest.mark.fault("C09")
@pytest.mark.parametrize(
    ("updates", "saves"),
    [
        pytest.param((12, 11), [("save", "a")], id="the newest state is saved, once"),
        pytest.param((CHECKPOINT, CHECKPOINT), [], id="the checkpoint is as new"),
    ],
)
def test_the_others_end_and_their_state_is_saved_first(
    driver: GenerationsDriver, world: World, present: Generation, updates: tuple[int, int], saves: list[Any]
) -> None:
    world.silent, world.overdue = {"c"}, {"c"}
    driver._restart_unresponsive(present)
    assert world.done == CANCELLED, "nobody is restarted while others train"

    present.outcomes["b"] = MemberOutcome(updates[1], lost="the driver has ended the generation")
    driver._restart_unresponsive(present)
    assert world.done == CANCELLED

    present.outcomes["a"] = MemberOutcome(updates[0], lost="the driver has ended the generation")
    for _ in range(2):
        driver._restart_unresponsive(present)
    assert [*CANCELLED, *saves, ("restart", "c")] == world.done


def test_where_no_member_answers_there_is_nothing_to_save(
    driver: GenerationsDriver, world: World, present: Generation
) -> None:
    world.silent, world.overdue = {"a", "b", "c"}, {"a", "b"}
    driver._restart_unresponsive(present)
    assert world.done == [*CANCELLED, ("restart", "a"), ("restart", "b")]


def test_those_that_do_not_end_are_not_waited_for_any_longer(
    driver: GenerationsDriver, world: World, present: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when they wait for the one that hangs by NCCL, which its restart ends."""
    now = 100.0
    monkeypatch.setattr(generations.time, "monotonic", lambda: now)
    present.outcomes["b"] = MemberOutcome(12, lost="rank 2 does not answer")
    world.silent, world.overdue = {"c"}, {"c"}
    driver._restart_unresponsive(present)
    now += generations._SAVING_SECONDS
    driver._restart_unresponsive(present)
    assert world.done == [("cancel", "a"), ("cancel", "c"), ("save", "b"), ("restart", "c")]


def test_a_worker_that_does_not_train_is_restarted_at_once(
    driver: GenerationsDriver, world: World, present: Generation
) -> None:
    world.silent, world.overdue = {"idle"}, {"idle"}
    driver._restart_unresponsive(present)
    assert world.done == [("restart", "idle")]


def test_a_member_whose_thread_hangs_is_restarted_long_after_the_others_ended(
    driver: GenerationsDriver, world: World, present: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(generations.time, "monotonic", lambda: now)
    present.cancelled_at = now
    present.outcomes |= {"a": MemberOutcome(12, lost="rank 2 was lost"), "b": None}
    now += world.spec.patience_seconds + membership.STUCK_SECONDS
    driver._restart_unresponsive(present)
    assert world.done == []

    now += 1
    for _ in range(2):
        driver._restart_unresponsive(present)
    assert world.done == [("save", "a"), ("restart", "c")]
