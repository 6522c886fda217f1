"""How many workers train: the plan's number, or all that are ready if the cluster is scaled externally."""

import time
from collections.abc import Collection
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.contract.lead_time import RELEASE_SLACK
from batchgrowth.errors import ClusterError
from batchgrowth.expected_batch import ExpectedBatch
from batchgrowth.growth_decisions import Course
from batchgrowth.plan import BatchDecision, make_plan
from batchgrowth.position import Position
from batchgrowth_trainer.drivers import scaling as scaling_module
from batchgrowth_trainer.drivers.run import RunState, RunTotals
from batchgrowth_trainer.drivers.scaling import Scaling, shards_of
from batchgrowth_trainer.record.checkpoint import CheckpointStore
from batchgrowth_trainer.record.history import Committed, History, HistoryRow, ResizeRow
from batchgrowth_trainer.sinks.events import Event, Looked

PLAN = (
    "batch={initial: 8, maximum: 32, shard: 4, growth: {type: Geometric, geometric: {factor: '2', everyEpochs: 1}}}",
)


class WorkerPool:
    """Workers by name: ready, preparing, leaving."""

    def __init__(self) -> None:
        self.ready: dict[str, None] = {}
        self.leaving: set[str] = set()
        self.registered: set[str] = set()
        self.trouble = ""
        self.is_preparing = False

    def in_order(self, _updates: Any) -> list[str]:
        return list(self.ready)

    def check_connected(self) -> None:
        """The scheduler answers."""

    def release_leaving(self, _busy: Any) -> None:
        """None is leaving."""


@pytest.fixture
def run(small_job: Any) -> Any:
    job = small_job(*PLAN, "workers.maximum=1")
    plan = make_plan(job.spec)
    waits: list[str] = []
    return SimpleNamespace(
        spec=job.spec, where="run, update 0", plan=plan,
        position=Position(), desired_workers=partial(shards_of, plan), stop_requested=lambda: False,
        publish=lambda event: None, wait_for=waits.append, waits=waits, totals=RunTotals(),
    )  # fmt: skip


def joined(pool: WorkerPool, *names: str) -> None:
    pool.ready |= dict.fromkeys(names)


@pytest.mark.fault("C14")
def test_ready_workers_train_up_to_the_number_of_shards(run: Any) -> None:
    pool = WorkerPool()
    scaling = Scaling(run, pool, None, 60)  # type: ignore[arg-type]
    joined(pool, "a", "b", "c")
    assert scaling.gather(lambda _: None, {}) == ["a", "b"]  # 8 examples, 4 a shard
    run.position = run.plan.position_at(run.plan.stages[1].first_update)
    assert scaling.gather(lambda _: None, {}) == ["a", "b", "c"]


def test_a_group_ends_before_the_stage_that_can_use_more(run: Any) -> None:
    pool = WorkerPool()
    scaling = Scaling(run, pool, None, 60)  # type: ignore[arg-type]
    joined(pool, "a", "b")
    assert run.plan.updates == scaling.ends_at(2)
    joined(pool, "c")
    assert run.plan.stages[1].first_update == scaling.ends_at(2)


def test_newcomers_join_together(run: Any) -> None:
    pool = WorkerPool()
    scaling = Scaling(run, pool, None, 60)  # type: ignore[arg-type]
    run.position = run.plan.position_at(run.plan.stages[-1].first_update)
    joined(pool, "a", "b")
    assert not scaling.reason_to_regroup(["a", "b"])
    joined(pool, "c")
    pool.is_preparing = True
    assert not scaling.reason_to_regroup(["a", "b"])
    pool.is_preparing = False
    assert scaling.reason_to_regroup(["a", "b"])
    pool.is_preparing = True
    deadline = time.monotonic() + 10
    while not scaling.reason_to_regroup(["a", "b"]):  # a slow newcomer does not hold up the others
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_resizes_are_apart_while_more_workers_are_to_come(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand workers that arrive one by one cost a pause for every ten pauses of training, not one each."""
    pool, seconds = WorkerPool(), [0.0]
    monkeypatch.setattr(scaling_module, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    scaling = Scaling(run, pool, None, 60)  # type: ignore[arg-type]
    run.position = run.plan.position_at(run.plan.stages[-1].first_update)
    desired = scaling.desired_workers()
    names = [f"w{i}" for i in range(desired)]
    joined(pool, *names[:2])
    members = scaling.gather(lambda _: None, {})
    run.totals.resizes += [ResizeRow(1, 1, 2, 3.0), ResizeRow(2, 2, 1, 30.0)]  # one has joined, then one was lost
    joined(pool, names[2])
    seconds[0] = 29.0
    assert not scaling.reason_to_regroup(members)
    seconds[0] = 31.0
    assert scaling.reason_to_regroup(members)
    seconds[0] = 29.0
    joined(pool, *names)  # all that are wanted: there is no reason to wait
    assert scaling.reason_to_regroup(members)


def test_a_leaving_worker_ends_its_group(run: Any) -> None:
    pool = WorkerPool()
    scaling = Scaling(run, pool, None, 60)  # type: ignore[arg-type]
    joined(pool, "a")
    assert not scaling.reason_to_regroup(["a", "b"][:1])
    pool.leaving.add("b")
    assert not scaling.reason_to_regroup(["a"])
    assert scaling.reason_to_regroup(["a", "b"])


@pytest.mark.fault("C14")
def test_a_stage_waits_once(small_job: Any, run: Any) -> None:
    """workers.waitSeconds applies once per stage: a group that loses a worker later goes on with the others."""
    run.spec = small_job(*PLAN, "workers={maximum: 2, examplesPerWorker: 4, waitSeconds: 30}").spec
    run.plan = make_plan(run.spec)
    pool = WorkerPool()
    scaling = Scaling(run, pool, None, 60)  # type: ignore[arg-type]
    joined(pool, "a")
    assert scaling.gather(lambda _: joined(pool, "b"), {}) == ["a", "b"]
    del pool.ready["a"]
    assert scaling.gather(lambda _: pytest.fail("it waited"), {}) == ["b"]


class MeasuredRun:
    """A run of a measured job at one update per second, whose requests for workers and looks are kept."""

    def __init__(self, job: Any, folder: Path, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[int] = []
        self.looks: list[ExpectedBatch | None] = []
        self._seconds = 0.0
        monkeypatch.setattr(scaling_module, "time", SimpleNamespace(monotonic=lambda: self._seconds))
        self._run = RunState(
            Course(job.spec), history=history, checkpoints=CheckpointStore(folder, {}, 1), sinks=[self],
            desired_workers=lambda plan, position: plan.stage_at(position.update).workers, stop_requested=lambda: False,
        )  # fmt: skip
        self._scaling = Scaling(self._run, WorkerPool(), self, 60)  # type: ignore[arg-type]

    def handle(self, event: Event) -> None:
        if isinstance(event, Looked):
            self.looks.append(event.forecast)

    def scale(self, count: int, _keep: Collection[str]) -> None:
        self.requests.append(count)

    def repair(self) -> None:
        """No worker ever starts."""

    def update(self, outcome: BatchDecision | None = None) -> None:
        plan, position = self._run.plan, self._run.position
        committed = Committed(0.5, 0.1, stop=False, decision=outcome)
        self._run.record_rows([HistoryRow.now(plan.step_at(position), plan, committed, 1, (1.0, 0.0, 0.0))])
        self.wait(1)

    def wait(self, seconds: float) -> None:
        self._seconds += seconds
        self._scaling.tick([])


def test_workers_come_ahead_of_a_forecast_and_outstay_a_wrong_one(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks after 4, 8 and 12 updates ask for 8, 16 and again 16 examples; from the first two follow 32."""
    job = small_job(
        "batch.growth={type: LossRatio, looks: {everyUpdates: 4}}", "workers={maximum: 4, examplesPerWorker: 8}"
    )
    with closing(History(tmp_path)) as history:
        run = MeasuredRun(job, tmp_path / "checkpoints", history, monkeypatch)
        for number in range(1, 13):
            asked = min(2.0 * number, 16.0)
            run.update(BatchDecision(number, int(asked), asked / 8, asked) if number % 4 == 0 else None)
            assert [1] + [4] * (number >= 8) == run.requests
        run.wait(scaling_module._FIRST_LEAD_SECONDS * RELEASE_SLACK)

    assert [None, ExpectedBatch(update=12, batch_size=32, workers=4), None] == run.looks
    assert run.requests == [1, 4, 2]


def test_a_worker_that_comes_back_is_no_measure_of_a_start(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours after the request, the next stage would otherwise be requested hours ahead."""
    run.expected, pool, seconds = run.plan, WorkerPool(), [100.0]
    monkeypatch.setattr(scaling_module, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    scaler: Any = SimpleNamespace(scale=lambda _count, _keep: None, repair=lambda: None)
    scaling = Scaling(run, pool, scaler, 60)  # type: ignore[arg-type]

    def ready(at: float, *names: str) -> float | None:
        pool.ready = dict.fromkeys(names)
        seconds[0] = at
        scaling.tick([])
        return scaling._lead_seconds

    assert ready(100) is None
    assert [ready(105, "a"), ready(105.1, "a", "b")] == [5.0, pytest.approx(5.0, abs=0.1)]
    measured = scaling._lead_seconds
    assert [ready(9000, "a"), ready(9010, "a", "c")] == [measured, measured]


@pytest.mark.fault("N02")
@pytest.mark.parametrize("answers", [True, False])
def test_only_silence_times_out(run: Any, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """A worker that loads for an hour answers; a silent one is given up after a minute."""
    seconds = [0.0]
    monkeypatch.setattr(scaling_module, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    preparing = SimpleNamespace(heard_at=0.0, ask=lambda: None, line=lambda: "worker a has prepared for a while")
    pool: Any = WorkerPool()
    pool.preparing = preparing
    pool.check_failed = lambda: None

    def wait(_seconds: float) -> None:
        seconds[0] += 1
        if answers:
            preparing.heard_at = seconds[0]
        if seconds[0] == 3600:
            joined(pool, "a")

    scaling = Scaling(run, pool, None, 60)
    if answers:
        assert scaling.gather(wait, {}) == ["a"]
        assert run.waits[-1] == "a worker; 0 registered, none ready; worker a has prepared for a while"
    else:
        with pytest.raises(ClusterError, match="none has shown a sign of life for 61 s"):
            scaling.gather(wait, {})
