"""The driver of GatherScatter with workers in this process, which are slow, fail and die at chosen moments."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.errors import WorkloadError
from batchgrowth.plan import Step
from batchgrowth_trainer.building import build_replica
from batchgrowth_trainer.drivers import gather_scatter, stragglers
from batchgrowth_trainer.drivers.gather_scatter import GatherScatterDriver
from batchgrowth_trainer.drivers.run import Undo
from batchgrowth_trainer.drivers.stragglers import FIRST_REST
from batchgrowth_trainer.exchange.spot_check import answers_of
from batchgrowth_trainer.pool.connection import LOST, SchedulerLost
from batchgrowth_trainer.pool.membership import Ended, Event
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.sinks.events import Event as RunEvent
from batchgrowth_trainer.training import Options, train
from batchgrowth_trainer.user_errors import DeviceFault
from batchgrowth_trainer.worker.member import Member
from batchgrowth_trainer.worker.messages import Gradients, Left

JOB = ("epochs=3", "batch={initial: 12, maximum: 24, shard: 4, growth: {type: Geometric, geometric: {factor: '2', "
       "everyEpochs: 1}}}")  # fmt: skip
BACKUPS = "exchange={type: GatherScatter, gatherScatter: {backups: true}}"
SLOW = 3
"""The update, counted from 0, at which the worker a is slow."""


class Task:
    """A task on a worker; `work` returns its result or raises."""

    def __init__(self, key: int, worker: str, update: int, work: Callable[[], Gradients]) -> None:
        self.key, self.worker, self.update, self.work = str(key), worker, update, work
        self.status = "pending"
        self.error: Exception | None = None
        self.result: Gradients | None = None

    def exception(self) -> Exception | None:
        return self.error

    def end(self, number: int) -> Ended:
        try:
            self.result = self.work()
            self.status = "finished"
        except DeviceFault as error:
            self.error, self.status = error, "error"
        future: Any = self
        return Ended(self.worker, number, future)


class WorkerPool:
    """WorkerPool and calls in one: three workers, of whose tasks one ends at each look, in the order of the requests.

    `story` says which are held back, which fail, and which workers die; a part is overdue once only such are left.
    """

    run_id = "run"

    def __init__(self, members: dict[str, Member], story: "Story") -> None:
        self.members, self.story, self.calls = members, story, self
        self.ready, self.tasks = dict.fromkeys(members), list[Task]()
        self.asked = list[tuple[int, str, int]]()
        self.left_out = dict[str, str]()
        self.number = 0

    def request(
        self, worker: str, _function: Any, _run: str, model: Any, step: Any, rank: int, size: int, then: int
    ) -> Task:
        update = step.position.update
        self.number = then
        assert (model is None) == ((update, worker) in {asked[:2] for asked in self.asked[-size:]}), "one model each"
        self.asked.append((update, worker, rank))

        def work() -> Gradients:
            if self.story.is_faulty(update, worker):
                raise DeviceFault(f"ECC error of {worker}")
            return Gradients(self.members[worker].gradient_rows(model, step, rank, size), 1.0)

        self.tasks.append(Task(len(self.asked), worker, update, work))
        return self.tasks[-1]

    def drain_events(self, _seconds: float, handle: Callable[[Event], None]) -> None:
        for event in self.events():
            handle(event)

    def events(self) -> Iterator[Event]:
        for worker in self.story.dying(self):
            self.ready.pop(worker, None)
            self.tasks = [task for task in self.tasks if task.worker != worker]
            yield Left(worker)
        ready = [task for task in self.tasks if task.status == "pending" and not self.story.holds(self, task)]
        stragglers.SHORTEST_SECONDS = math.inf if ready else -1.0
        if ready:
            self.tasks.remove(ready[0])
            yield ready[0].end(self.number)

    def leave_out(self, worker: str, fault: Exception) -> None:
        self.ready.pop(worker, None)
        self.left_out[worker] = str(fault)

    def on_end(self, _worker: str, number: int) -> int:
        return number

    def follow(self, _event: Event) -> None: ...
    def admit_held(self, _update: int) -> None: ...
    def check_connected(self) -> None: ...
    def restart(self, workers: Any, *_: Any) -> None:
        assert not workers

    def restart_unresponsive(self, _workers: Any, _note: Any) -> None: ...
    def hung(self) -> set[str]:
        return set()


def num_asked(pool: WorkerPool) -> int:
    """The tasks of the slow update: four once it has a backup."""
    return [update for update, _, _ in pool.asked].count(SLOW)


class Story:
    """The worker a holds its part of the slow update until update `until` is under way."""

    until = SLOW + 3

    def holds(self, pool: WorkerPool, task: Task) -> bool:
        return task.update == SLOW and task.worker == "a" and pool.asked[-1][0] < self.until

    def dying(self, _pool: WorkerPool) -> set[str]:
        return set()

    def is_faulty(self, _update: int, _worker: str) -> bool:
        return False


class AlwaysSlow(Story):
    """The worker a holds each of its parts until the next update is under way."""

    def holds(self, pool: WorkerPool, task: Task) -> bool:
        return task.worker == "a" and pool.asked[-1][0] <= task.update


class Faulty(Story):
    """Its device fails, before (`until` is the slow update) or after the backup has ended."""

    def __init__(self, until: int) -> None:
        self.until = until

    def holds(self, pool: WorkerPool, task: Task) -> bool:
        waits = task.update == SLOW and task.worker == "a" and num_asked(pool) < 4
        return super().holds(pool, task) or waits

    def is_faulty(self, update: int, worker: str) -> bool:
        return update == SLOW and worker == "a"


class Dying(Story):
    """It dies as soon as its backup has been asked for."""

    def dying(self, pool: WorkerPool) -> set[str]:
        return {"a"} if num_asked(pool) == 4 and "a" in pool.ready else set()


class DyingHelper(Story):
    """The slow worker dies together with the one that repeats its part, so the update is repeated."""

    until = SLOW

    def holds(self, pool: WorkerPool, task: Task) -> bool:
        return task.update == SLOW and task.worker == "a" and num_asked(pool) < 4

    def dying(self, pool: WorkerPool) -> set[str]:
        return {"a", "b"} & pool.ready.keys() if num_asked(pool) == 4 else set()


class DyingAfterwards(Story):
    """A worker that has ended its part dies before the slow one has ended."""

    def holds(self, pool: WorkerPool, task: Task) -> bool:
        return task.update == SLOW and task.worker == "a" and "c" in pool.ready

    def dying(self, pool: WorkerPool) -> set[str]:
        alone = [task.worker for task in pool.tasks] == ["a"]
        return {"c"} & pool.ready.keys() if alone and pool.asked[-1][0] == SLOW else set()


class Seen:
    """What a run recorded."""

    where, reported, decisions = "a run, update 0", 0, ()

    def __init__(self, job: Any) -> None:
        self.spec = job.spec
        self.workers, self.resizes, self.causes, self.notes = list[int](), list[Any](), list[str](), list[str]()
        self.backups = list[ExchangeFigures]()

    def publish(self, event: RunEvent) -> None:
        if isinstance(event, ExchangeFigures) and event.backups:
            self.backups.append(event)

    def record_rows(self, rows: Any) -> None:
        self.workers += [row.workers for row in rows]

    def record_resize(self, *resize: Any) -> None:
        self.resizes.append(resize[1:3])

    def record_recovery(self, cause: str) -> None:
        self.causes.append(cause)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def evaluation_due(self, *_: Any) -> bool:
        return False

    def checkpoint_after(self, _update: int) -> None:
        """There is none."""

    def go_on_from(self, update: int) -> None:
        assert update == 0

    def try_saving(self, _size: int) -> None:
        """There is room."""

    def saved_before_errors(self, _save: Any) -> nullcontext[None]:
        return nullcontext()

    stop_requested = checkpoint_due = staticmethod(lambda: False)


@pytest.fixture
def expected(small_job: Any, tmp_path: Any) -> str:
    return str(train(small_job(*JOB), Options(output_dir=tmp_path))["weightsSha256"])


@pytest.fixture
def trained(small_job: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[str, Seen, WorkerPool]]]:
    """A function: the weights of a run with that story, what it recorded, and its workers."""
    monkeypatch.setattr(stragglers, "TIMES_THE_MEDIAN", -1.0)
    monkeypatch.setattr(stragglers, "SHORTEST_SECONDS", math.inf)  # see WorkerPool.events
    members = dict[str, Member]()

    def run(story: Story, exchange: str = BACKUPS) -> tuple[str, Seen, WorkerPool]:
        job = small_job(*JOB, exchange, "verify=false")  # these workers answer nothing but requests for gradients
        members.update({name: Member(job.spec, "127.0.0.1") for name in "abc"})
        pool, seen = WorkerPool(members, story), Seen(job)
        scaling = SimpleNamespace(gather=lambda _handle, _updates: list(pool.ready), team=lambda _: list(pool.ready))
        driver: Any = GatherScatterDriver
        replica = build_replica(job.spec)
        with closing(replica.reader):
            done = driver(seen, pool, scaling, replica).train()
        return weights_sha256(done.state_dict), seen, pool

    yield run
    for member in members.values():
        member.close()


def asked_at(pool: WorkerPool, update: int) -> list[tuple[str, int]]:
    """The worker and rank of each task of that update."""
    return [(worker, rank) for at, worker, rank in pool.asked if at == update]


@pytest.mark.fault("C08")
def test_a_slow_worker_is_left_out_until_it_has_ended(trained: Any, expected: str) -> None:
    weights, seen, pool = trained(Story())
    assert weights == expected
    assert ("b", 0) in asked_at(pool, SLOW), "b was idle first"
    for update in (SLOW + 1, SLOW + 2):
        assert {("b", 0), ("c", 1)} <= set(asked_at(pool, update))
        assert seen.workers[update] == 2
    assert seen.workers[SLOW + 4] == 3
    assert ("a", 0) in asked_at(pool, SLOW + 4)
    assert seen.backups == [ExchangeFigures(backups=1, backups_first=1)]
    assert (seen.causes, seen.resizes, seen.notes) == ([], [], [])


@pytest.mark.fault("C08")
def test_a_worker_that_is_always_slow_has_few_parts(trained: Any, expected: str) -> None:
    """It rests between them, after the first time."""
    weights, seen, pool = trained(AlwaysSlow())
    assert weights == expected
    asked = sorted({update for update, worker, _ in pool.asked if worker == "a"})
    assert asked[:2] == [0, 2]
    assert all(after - before > FIRST_REST for before, after in pairwise(asked[1:]))
    assert (seen.causes, seen.resizes) == ([], [])


@pytest.mark.fault("C07")
@pytest.mark.parametrize("until", [SLOW, SLOW + 2], ids=["before its backup has ended", "after it"])
def test_a_slow_worker_with_a_fault_is_left_out(trained: Any, expected: str, until: int) -> None:
    """The update is committed all the same."""
    weights, seen, pool = trained(Faulty(until))
    assert weights == expected
    assert pool.left_out == {"a": "ECC error of a"}
    assert seen.notes == ["worker a was left out: ECC error of a"]
    assert "a" not in {worker for update, worker, _ in pool.asked if update > SLOW}
    assert seen.causes == []


@pytest.mark.fault("C01")
def test_a_slow_worker_that_dies_after_it_has_a_backup_costs_nothing(trained: Any, expected: str) -> None:
    weights, seen, pool = trained(Dying())
    assert weights == expected
    assert seen.causes == []
    assert seen.resizes == [(3, 2)]
    assert "a" not in pool.ready


@pytest.mark.fault("C01")
def test_an_update_without_a_copy_of_a_part_is_repeated(trained: Any, expected: str) -> None:
    weights, seen, pool = trained(DyingHelper())
    assert weights == expected
    assert seen.causes == ["a worker was lost"]
    assert seen.resizes == [(3, 1)]
    assert asked_at(pool, SLOW)[4:] == [("c", 0)]


@pytest.mark.fault("C01")
def test_a_worker_that_dies_after_it_has_ended_costs_nothing(trained: Any, expected: str) -> None:
    weights, seen, pool = trained(DyingAfterwards(), "exchange.type=GatherScatter")
    assert weights == expected
    assert seen.causes == []
    assert seen.resizes == [(3, 2)]
    assert "c" not in pool.ready


def test_without_backups_nothing_is_repeated(trained: Any, expected: str) -> None:
    """The driver waits for the worker that ends last, and sends nothing twice."""

    class Slow(Story):
        def holds(self, pool: WorkerPool, task: Task) -> bool:
            return task.update == SLOW and task.worker == "a" and len(pool.tasks) > 1

    weights, seen, pool = trained(Slow(), "exchange.type=GatherScatter")
    assert weights == expected
    assert seen.backups == []
    assert all([("a", 0), ("b", 1), ("c", 2)] == asked_at(pool, update) for update in range(len(seen.workers)))


Answers = Callable[[Step, int, int], list[tuple[int, ...]]]
"""What a worker answers in a check of a shard, so many times."""


class Checked(Seen):
    """A run and its pool in one: workers with these digests, and what a check did.

    A worker's request ends once events are handled: with its answers, with its error, or as lost if it has none.
    One that is silent is lost once it is restarted.
    """

    run_id = "run"

    def __init__(self, job: Any, digests: dict[str, str], answers: dict[str, Answers | None], silent: str) -> None:
        super().__init__(job)
        self.calls, self.answers, self.silent = self, answers, silent
        self.ready = {
            name: SimpleNamespace(name=name, arithmetic=SimpleNamespace(digest=digest))
            for name, digest in digests.items()
        }
        self.asked, self.left_out, self.replaced, self.restarted = list[str](), list[str](), list[str](), list[str]()
        self.covered, self.events = list[int | None](), list[Event]()

    def request(
        self, worker: str, _function: Any, _run: str, _model: Any, step: Step, shard: int, times: int, then: int
    ) -> Any:
        self.asked.append(worker)
        request: Any = SimpleNamespace(key=str(len(self.asked)), status="lost", error=None)
        request.exception = lambda: request.error
        answers = self.answers[worker]
        if worker == self.silent:
            request.status = "pending"
            return request
        try:
            if answers is not None:
                request.result = answers(step, shard, times)
                request.status = "finished"
        except (DeviceFault, WorkloadError) as error:
            request.status, request.error = "error", error
        self.events.append(Ended(worker, then, request))
        return request

    def drain_events(self, _seconds: float, handle: Callable[[Event], None]) -> None:
        while self.events:
            handle(self.events.pop(0))

    def restart_unresponsive(self, workers: list[str], _note: Any) -> None:
        self.restarted += workers
        self.events += map(Left, workers)

    def record_figures(self, figures: ExchangeFigures) -> None:
        self.covered.append(figures.checked_update)

    def leave_out(self, worker: str, _fault: Exception) -> None:
        self.left_out.append(worker)

    def replace(self, workers: list[str], *_: Any) -> None:
        self.replaced += workers
        if "last" in workers:
            raise SchedulerLost(LOST)

    def name_of(self, worker: str) -> str:
        return worker

    def on_end(self, _worker: str, number: int) -> int:
        return number

    def follow(self, _event: Event) -> None: ...
    def admit_held(self, _update: int) -> None: ...
    def check_connected(self) -> None: ...


@pytest.fixture
def check(small_job: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Checked, Undo | None]]]:
    """A function: what a check after the first update did, and what it found; the server's digest is `cpu`."""
    monkeypatch.setattr(gather_scatter, "is_check_due", lambda *_: True)
    job = small_job("workload.entrypoint=small:plain", "exchange.type=GatherScatter")
    server, other = build_replica(job.spec), build_replica(job.spec)
    server.arithmetic = replace(server.arithmetic, digest="cpu")
    seen = list[Checked]()

    def checked(digests: dict[str, str], silent: str = "", **answers: Answers | None) -> tuple[Checked, Undo | None]:
        right: dict[str, Answers | None] = {name: partial(answers_of, other) for name in digests}
        seen.append(Checked(job, digests, right | answers, silent))
        pool: Any = seen[-1]
        driver = GatherScatterDriver(pool, pool, pool, server)
        try:
            driver._check_if_due(server.plan.step_at(server.position), list(digests))
        except Undo as found:
            return seen[-1], found
        return seen[-1], None

    yield checked
    server.reader.close()
    other.reader.close()


def wrong(_step: Step, _shard: int, times: int) -> list[tuple[int, ...]]:
    """The answers of a worker whose numbers are all 0."""
    return [(0,) * 6] * times


@pytest.mark.parametrize("digests", [{"a": "gpu"}, {"a": "gpu", "b": "another gpu"}])
def test_a_check_in_which_nothing_can_be_compared_does_not_count(check: Any, digests: dict[str, str]) -> None:
    """A shard that is computed once shows nothing."""
    seen, found = check(digests, a=wrong)
    assert (seen.asked, seen.covered, found) == ([], [], None)


def test_a_check_whose_workers_are_all_lost_does_not_count(check: Any) -> None:
    seen, found = check({"a": "cpu"}, a=None)
    assert (seen.asked, seen.covered, found) == (["a"], [], None)


def test_workers_that_the_server_cannot_be_compared_with_are_compared_with_each_other(check: Any) -> None:
    """As those with GPUs are, of a trainer without one."""
    gpus = dict.fromkeys("abc", "gpu")
    seen, found = check(gpus | {"d": "another gpu"}, d=wrong)
    assert (seen.asked, seen.covered, found) == (["a", "b", "c"], [1], None)
    seen, found = check(gpus, b=wrong)
    assert (seen.covered, seen.replaced, found.workers) == ([], ["b"], ("b",))
    assert str(found).startswith("worker b differs from 2 others: the gradient of model.0.weight, in shard ")


@pytest.mark.fault("C26")
def test_a_finding_stands_if_the_scheduler_is_lost_before_the_worker_is_replaced(check: Any) -> None:
    """Otherwise the server's state, which is in doubt, would be saved for the next scheduler."""
    seen, found = check(dict.fromkeys(("a", "last"), "cpu"), last=wrong)
    assert (seen.covered, seen.replaced, found.workers) == ([], ["last"], ("last",))


def test_a_difference_that_cannot_be_judged_does_not_count(check: Any) -> None:
    """The worker that differs is lost before it answers again."""

    def once(step: Step, shard: int, times: int) -> list[tuple[int, ...]]:
        if times > 1:
            raise DeviceFault("ECC error of a")
        return wrong(step, shard, times)

    seen, found = check({"a": "cpu"}, a=once)
    assert (seen.asked, seen.covered, seen.left_out, found) == (["a", "a"], [], ["a"], None)


def test_a_difference_that_does_not_recur_is_none(check: Any) -> None:
    rights = list[Answers]()

    def once(step: Step, shard: int, times: int) -> list[tuple[int, ...]]:
        return wrong(step, shard, times) if times == 1 else rights[0](step, shard, times)

    seen, _ = check({"a": "cpu"})
    assert seen.covered == [1]
    rights += [seen.answers["a"]]
    seen, found = check({"a": "cpu"}, a=once)
    assert (seen.asked, seen.covered, found) == (["a", "a"], [1], None)


def test_an_error_of_a_worker_in_a_check_is_not_swallowed(check: Any) -> None:
    """A fault leaves out the worker, and what the code did ends the run."""

    def raising(error: Exception) -> Answers:
        def raised(*_: Any) -> list[tuple[int, ...]]:
            raise error

        return raised

    seen, found = check({"a": "cpu", "b": "cpu"}, a=raising(DeviceFault("ECC error of a")))
    assert (seen.left_out, seen.notes, found) == (["a"], ["worker a was left out: ECC error of a"], None)
    assert seen.covered == [1]
    with pytest.raises(WorkloadError, match=r"net\.count has changed"):
        check({"a": "cpu"}, a=raising(WorkloadError("net.count has changed")))


def test_a_worker_that_hangs_in_a_check_is_restarted(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    late = SimpleNamespace(monotonic=lambda: 1e12, perf_counter=lambda: 0.0)
    monkeypatch.setattr(gather_scatter, "time", late)
    seen, found = check({"a": "cpu"}, silent="a")
    assert (seen.restarted, seen.covered, found) == (["a"], [], None)
