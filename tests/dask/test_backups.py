"""Backups of GatherScatter: an idle worker repeats what a slow one computes, with the weights of one process.

The slow worker sleeps within a shard until the driver has committed three further updates. So a run in which any update
waits for it sleeps in vain.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.errors import Interrupted
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth_trainer.pool import membership
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.sinks.events import Event, Note, Recovered
from batchgrowth_trainer.training import Options, train
from hunting import Hunter

USER_CODE = str(Path(__file__).parent / "user_code")
sys.path.append(USER_CODE)
JOB = (
    "epochs=4",
    "batch={initial: 64, maximum: 256, shard: 32, growth: {type: Geometric, geometric: {factor: '2', everyEpochs: 1}}}",
    "workers={maximum: 4, waitSeconds: 60}",
)
BACKUPS = "exchange={type: GatherScatter, timeoutSeconds: 2, gatherScatter: {backups: true}}"


class Watch:
    """A sink that wakes sleepers by what it writes to the folder, and keeps what happened."""

    def __init__(self, folder: Path, updates: int, on_sleep: Callable[[int], None] = lambda _: None) -> None:
        """`on_sleep` is called with the process that slept first, at the commit of the update without its part."""
        self._folder, self._updates, self._on_sleep = folder, updates, on_sleep
        self._called = False
        self.first = self.second = 0
        self.causes: list[str] = []
        self.notes: list[str] = []
        self.sizes = Counter[int]()

    def handle(self, event: Event) -> None:
        match event:
            case HistoryRow():
                self.sizes[event.workers] += 1
                if self.sleeps and not self._called:
                    self._called = True
                    self._on_sleep(self.sleeps[0])
                with (self._folder / "commits").open("a") as file:
                    file.write(".")
                if event.update == self._updates:
                    (self._folder / "over").touch()
            case ExchangeFigures(backups_first=first, backups_second=second):
                self.first, self.second = self.first + first, self.second + second
            case Recovered():
                self.causes.append(event.cause)
            case Note(text):
                self.notes.append(text)

    @property
    def sleeps(self) -> list[int]:
        """The process of each sleep that has begun."""
        file = self._folder / "sleeps"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    @property
    def slept_in_vain(self) -> bool:
        return (self._folder / "in-vain").exists()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, digits_weights: Callable[..., str]) -> str:
    """The weights of an undisturbed run."""
    arguments = "workload.arguments={hidden: '8'}"
    return digits_weights(tmp_path_factory.mktemp("alone"), *JOB, arguments)


def sleeping(make_job: Any, folder: Path, more_arguments: str, *more: str) -> Any:
    arguments = f"workload.arguments={{folder: '{folder}', {more_arguments}}}"
    return make_job(*JOB, BACKUPS, "workload.entrypoint=sleeping:workload", arguments, *more)


def options(folder: Path, *counts: int) -> Options:
    """With these numbers of workers, epoch by epoch."""

    def desired_workers(_plan: Plan, position: Position) -> int:
        return counts[min(position.epoch, len(counts) - 1)]

    return Options(output_dir=folder / "run", paths=(USER_CODE,), desired_workers=desired_workers)


@pytest.mark.fault("C08")
@pytest.mark.parametrize("counts", [(2,), (3,), (4,), (2, 4, 3)], ids=str)
def test_no_update_waits_for_a_slow_worker(
    digits_job: Any, tmp_path: Path, expected: str, counts: tuple[int, ...]
) -> None:
    """It is left out until it has ended, and joins again in the same process, without a recovery or a resize."""
    job = sleeping(digits_job, tmp_path, "sleepers: '1'")
    watch = Watch(tmp_path, make_plan(job.spec).updates)
    summary = train(job, options(tmp_path, *counts), [watch])
    assert summary["weightsSha256"] == expected
    assert not watch.slept_in_vain
    assert len(watch.sleeps) >= 2
    assert len(set(watch.sleeps)) == 1, "the slow worker was replaced"
    assert watch.first >= 1
    assert watch.first + watch.second >= len(watch.sleeps)
    assert min(counts) - 1 in watch.sizes, "it was never left out"
    assert watch.causes == []
    assert summary["recoveries"] == 0
    assert len(set(counts)) - 1 == len(summary["resizes"])


@pytest.mark.fault("C08")
@pytest.mark.parametrize("count", [2, 3])
def test_a_late_worker_that_has_ended_repeats_the_part_of_another(
    digits_job: Any, tmp_path: Path, expected: str, count: int
) -> None:
    """The sleep of one ends that of the other, which was late, so the update under way was begun without it."""
    job = sleeping(digits_job, tmp_path, "sleepers: 'all', longest: '10'")
    watch = Watch(tmp_path, make_plan(job.spec).updates)
    summary = train(job, options(tmp_path, count), [watch])
    assert summary["weightsSha256"] == expected
    assert not watch.slept_in_vain
    assert len(set(watch.sleeps)) >= 2
    assert count - 1 in watch.sizes, "no update was begun without the late one"
    assert watch.causes == []


@pytest.mark.fault("C01")
@pytest.mark.parametrize("count", [2, 4])
def test_a_slow_worker_is_killed_while_others_train_on(
    digits_job: Any, tmp_path: Path, expected: str, count: int
) -> None:
    """Its part has come from another, so no update is repeated."""
    job = sleeping(digits_job, tmp_path, "sleepers: '1'")
    watch = Watch(tmp_path, make_plan(job.spec).updates, lambda pid: os.kill(pid, signal.SIGKILL))
    summary = train(job, options(tmp_path, count), [watch])
    assert summary["weightsSha256"] == expected
    assert not watch.slept_in_vain
    assert len(watch.sleeps) == 1
    assert watch.first + watch.second >= 1
    assert watch.causes == []
    assert summary["recoveries"] == 0


@pytest.mark.fault("C01")
@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_of_any_worker_at_any_moment(digits_job: Any, tmp_path: Path, expected: str, seed: int) -> None:
    """Slow or not, with originals or backups; if only the slow one is left, it sleeps for two seconds."""
    job = sleeping(digits_job, tmp_path, "sleepers: '50', longest: '2'")
    watch, hunter = Watch(tmp_path, make_plan(job.spec).updates), Hunter(seed, most=6)
    with hunter.out():
        summary = train(job, options(tmp_path, 3), [watch])
    assert hunter.struck >= 2
    assert summary["weightsSha256"] == expected
    assert watch.sleeps
    assert watch.first + watch.second >= 1


@pytest.mark.fault("C09")
def test_a_slow_worker_whose_task_never_ends_is_restarted(
    digits_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the others train on; the run is stopped once that has happened."""
    monkeypatch.setattr(membership, "STUCK_SECONDS", 1.0)
    constant = "batch={initial: 64, maximum: 64, shard: 32, growth: {type: Constant}}"
    job = sleeping(digits_job, tmp_path, "wakes: 'False'", "epochs=2000", constant)
    watch = Watch(tmp_path, make_plan(job.spec).updates)

    def restarted() -> bool:
        return any(membership.STUCK in note for note in watch.notes) and watch.sizes[2] > 0

    with pytest.raises(Interrupted):
        train(job, options(tmp_path, 2), [watch], restarted)
    assert len(watch.sleeps) == 1
    assert not watch.slept_in_vain
    assert watch.sizes[1] > 0, "no update was made without it"
    assert watch.causes == []


def test_without_backups_an_update_waits(digits_job: Any, tmp_path: Path) -> None:
    """The same slow worker sleeps in vain; nothing is repeated and none is left out."""
    job = sleeping(digits_job, tmp_path, "longest: '1'", "exchange={type: GatherScatter}", "epochs=1")
    watch = Watch(tmp_path, make_plan(job.spec).updates)
    summary = train(job, options(tmp_path, 2), [watch])
    assert watch.slept_in_vain
    assert (watch.first, watch.second) == (0, 0)
    assert {2: summary["updates"]} == watch.sizes


@pytest.mark.fault("C23")
def test_a_run_that_is_stopped_while_a_worker_is_late(digits_job: Any, tmp_path: Path, expected: str) -> None:
    """Its part is in the checkpoint, so the run goes on from there."""
    job, asleep = sleeping(digits_job, tmp_path, "sleepers: '1'"), list[int]()
    watch = Watch(tmp_path, make_plan(job.spec).updates, asleep.append)
    with pytest.raises(Interrupted):
        train(job, options(tmp_path, 3), [watch], lambda: bool(asleep))
    assert len(watch.sleeps) == 1
    summary = train(job, replace(options(tmp_path, 2), resume=True), [watch])
    assert summary["weightsSha256"] == expected
    assert not watch.slept_in_vain
    assert watch.causes == []
