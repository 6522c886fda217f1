"""The arbiter of two members that computed different bits: which worker it is, and how long the driver waits for it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.drivers import generations
from batchgrowth_trainer.drivers.generations import Generation, GenerationsDriver
from batchgrowth_trainer.exchange.spot_check import Finding
from batchgrowth_trainer.pool.connection import LOST, SchedulerLost
from batchgrowth_trainer.user_errors import DeviceFault
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import MemberOutcome

RIGHT, WRONG = (1, 2), (1, 3)


class Task:
    """The arbiter's task, which ends with that answer or error, or never without either."""

    def __init__(self, result: Any) -> None:
        self.answer, self.dropped = result, False
        self.status = "pending"
        if result is not None:
            self.status = "error" if isinstance(result, Exception) else "finished"

    def done(self) -> bool:
        return self.status != "pending"

    def exception(self) -> Any:
        return self.answer

    def cancel(self) -> None:
        self.dropped = True


class World:
    """WorkerPool, calls, scaling and run in one: `ready` has the digest of each worker, and time passes with events.

    An arbiter answers RIGHT unless `answers` has something else for it.
    """

    run_id, where = "run", "run, update 12"
    leaving = frozenset[str]()

    def __init__(self, ready: dict[str, str], **answers: Any) -> None:
        self.calls, self.totals, self.reported, self.evaluated, self.update = self, self, 12, 1, 12
        self.ready = {name: self.prepared(digest) for name, digest in ready.items()}
        self.tasks, self.asked, self.answers = list[Task](), list[str](), answers
        self.notes, self.replaced, self.left_out = list[str](), list[str](), list[str]()
        self.seconds, self.stops_at = 0.0, 1e9
        self.most_faults, self.is_lost, self.dying = 1, False, set[str]()
        self.note, self.arithmetics = self.notes.append, SimpleNamespace(differs=lambda _: False)

    @staticmethod
    def prepared(digest: str) -> Any:
        return SimpleNamespace(name="", host="", arithmetic=SimpleNamespace(digest=digest))

    def ask(self, function: Any, *_: Any, workers: list[str]) -> dict[str, Any]:
        assert service.take_snapshot is function
        return {workers[0]: (({}, {}), ())}

    def submit(self, worker: str, function: Any, *_: Any) -> Task:
        assert service.compute_answers is function
        assert len(self.tasks) < 9, "it asks again and again"
        self.asked.append(worker)
        self.tasks.append(Task(self.answers.get(worker, RIGHT)))
        return self.tasks[-1]

    def fetch(self, task: Any, take: Callable[[Any], None]) -> None:
        """Give the answer, unless its worker dies, as those in `dying` do: then there is none, perhaps for ever."""
        if self.asked[-1] in self.dying:
            del self.ready[self.asked[-1]]
        else:
            take([task.answer])

    def replace(self, addresses: list[str], *_: Any) -> None:
        """The replacement has the arithmetic of the one that it replaces."""
        self.tick(addresses)
        self.replaced += addresses
        for address in addresses:
            self.ready[f"the next {address}"] = self.ready.pop(address)

    def leave_out(self, worker: str, fault: Exception) -> None:
        self.left_out.append(worker)
        del self.ready[worker]
        if len(self.left_out) > self.most_faults:
            raise fault

    def name_of(self, address: str) -> str:
        return f"pod {address}"

    def stop_requested(self) -> bool:
        return self.seconds >= self.stops_at

    def drain_events(self, _seconds: float, _handle: Any) -> None:
        self.seconds += 1.0
        assert self.seconds < 2 * generations._ARBITER_SECONDS, "it waits for ever"

    def tick(self, _members: Any) -> None:
        if self.is_lost:
            raise SchedulerLost(LOST)

    def wait_for(self, _cause: str) -> None: ...
    def admit_held(self, _update: int) -> None: ...


Wrong = Callable[..., list[str]]


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Wrong:
    """A function: those of the members a, b, ... of a world that an arbiter finds to be wrong, by their answers."""

    def found(world: World, *answers: Any) -> list[str]:
        monkeypatch.setattr(generations, "time", SimpleNamespace(monotonic=lambda: world.seconds))
        run: Any = world
        generation = Generation(3, list("abcd")[: len(answers)], outcomes={"a": MemberOutcome(12)})
        finding = Finding(12, SimpleNamespace(), 0, "the loss", (), answers)  # type: ignore[arg-type]
        return GenerationsDriver(run, run, run, "127.0.0.1")._wrong_by_arbiter(generation, finding)

    return found


def test_it_has_the_arithmetic_of_the_two(wrong: Wrong) -> None:
    """Another one would find both wrong, or the code: a GPU adds otherwise than the processors of the job."""
    world = World({"a": "gpu", "b": "gpu", "c": "cpu", "idle cpu": "cpu", "idle gpu": "gpu"})
    assert wrong(world, RIGHT, WRONG, None) == ["b"]
    assert (world.asked, world.replaced) == (["idle gpu"], [])


def test_without_such_a_worker_one_of_the_two_is_replaced(wrong: Wrong) -> None:
    world = World({"a": "gpu", "b": "gpu", "c": "cpu", "idle cpu": "cpu"})
    assert wrong(world, RIGHT, WRONG, None) == ["b"]
    assert (world.asked, world.replaced) == (["the next b"], ["b"])


def test_members_of_another_arithmetic_are_left_to_the_next_check(wrong: Wrong) -> None:
    world = World({"a": "gpu", "b": "gpu", "c": "cpu", "d": "cpu", "idle": "gpu"})
    assert wrong(world, WRONG, RIGHT, (5, 5), (6, 6)) == ["a"]


def test_if_all_leave_no_arbiter_can_be_told(wrong: Wrong) -> None:
    world = World({"idle": "gpu"})
    assert wrong(world, RIGHT, WRONG) == ["a", "b"]
    assert world.asked == []


@pytest.mark.parametrize(("stops_at", "ends"), [(1e9, generations._ARBITER_SECONDS), (5.0, 5.0)])
def test_an_arbiter_that_does_not_answer_is_not_waited_for_without_end(
    wrong: Wrong, stops_at: float, ends: float
) -> None:
    """The wait ends in time, and with a requested stop."""
    world = World({"a": "cpu", "b": "cpu", "idle": "cpu"}, idle=None)
    world.stops_at = stops_at
    assert wrong(world, RIGHT, WRONG) == ["a", "b"]
    assert world.seconds == pytest.approx(ends, abs=2)
    assert [task.dropped for task in world.tasks] == [True]


def test_an_error_of_the_arbiter_is_not_swallowed(wrong: Wrong) -> None:
    """A fault leaves it out, and what the code did ends the run."""
    ready = {"a": "cpu", "b": "cpu", "idle": "cpu"}
    world = World(ready, idle=DeviceFault("ECC error of idle"))
    assert wrong(world, RIGHT, WRONG) == ["b"]
    assert (world.left_out, world.notes) == (["idle"], ["worker idle was left out: ECC error of idle"])
    with pytest.raises(WorkloadError, match=r"net\.count has changed"):
        wrong(World(ready, idle=WorkloadError("net.count has changed")), RIGHT, WRONG)


@pytest.mark.fault("C26")
@pytest.mark.parametrize("trouble", ["the scheduler is lost", "the fault recurs"])
def test_a_finding_stands_without_an_arbiter(trouble: str) -> None:
    """Otherwise the newest state, which is in doubt, would be saved, or training would go on from such a checkpoint."""
    world: Any = World({"a": "cpu", "b": "cpu", "idle": "cpu"}, idle=DeviceFault("ECC error"))
    world.most_faults = 0
    if trouble == "the scheduler is lost":
        del world.ready["idle"]
        world.is_lost = True
    generation = Generation(3, ["a", "b"], outcomes={"a": MemberOutcome(12), "b": MemberOutcome(12)})
    finding = Finding(12, SimpleNamespace(), 0, "the loss", (), (RIGHT, WRONG), covered=7)  # type: ignore[arg-type]
    undo = GenerationsDriver(world, world, world, "127.0.0.1")._replace_wrong(generation, finding)
    assert (undo.update, undo.covered, undo.workers) == (12, 7, ("pod a", "pod b"))
    assert "differ from each other: the loss, in shard 0 of update 12" in str(undo)


@pytest.mark.fault("C01")
def test_an_arbiter_that_dies_before_its_answer_has_come_is_not_waited_for(wrong: Wrong) -> None:
    """Dask would wait for ever for a result that was computed, and is lost with its worker."""
    world = World({"a": "cpu", "b": "cpu", "idle": "cpu", "other": "cpu"})
    world.dying.add("idle")
    assert wrong(world, RIGHT, WRONG) == ["b"]
    assert world.asked == ["idle", "other"]
