"""Checkpoints that cannot be written: training goes on, is saved as soon as possible, and ends after a while."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth.growth_decisions import Course
from batchgrowth.position import Position
from batchgrowth_trainer.drivers import run
from batchgrowth_trainer.drivers.run import FAILING_SECONDS, LEAST_FAILURES, RETRY_SECONDS, RunState, RunTotals
from batchgrowth_trainer.record import storage
from batchgrowth_trainer.record.checkpoint import Saved
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.sinks.events import CheckpointFailed, CheckpointSaved, Event


class Disk:
    """Keeps history and checkpoints, and raises `error` for as long as there is one; only a test moves `now`, the time.

    A run on it goes on from update 7, and has the disk as a sink.
    """

    def __init__(self, job: Any) -> None:
        self.error: CheckpointError | None = None
        self.now = 100.0
        self.events: list[Event] = []
        self._job = job

    def sync(self) -> None:
        """There is no row."""

    def save(self, snapshot: Snapshot, story: Mapping[str, Any]) -> int:
        if self.error is not None:
            raise self.error
        return len(snapshot.tensors)

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def saves(self) -> RunState:
        disk: Any = self
        return RunState(
            Course(self._job.spec), history=disk, checkpoints=disk, sinks=[disk], stop_requested=lambda: False,
            desired_workers=lambda _plan, _position: 1,
            saved=Saved(snapshot(7), {"seconds": 0.0, **RunTotals().to_json()}),
        )  # fmt: skip


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, small_job: Any) -> Disk:
    made = Disk(small_job("checkpoint.everySeconds=300"))
    monkeypatch.setattr(run.time, "monotonic", lambda: made.now)
    return made


def snapshot(update: int) -> Snapshot:
    return Snapshot(Position(update), {"parameters": torch.zeros(2)})


def test_a_checkpoint_is_due_after_its_period(disk: Disk) -> None:
    saves = disk.saves()
    disk.now += 299
    assert not saves.checkpoint_due()
    disk.now += 1
    assert saves.checkpoint_due()
    saves.save(snapshot(9))
    assert not saves.checkpoint_due()
    assert [CheckpointSaved(9, 0.0, 1)] == disk.events
    assert saves.saved_update == 9


@pytest.mark.fault("D08")
def test_a_failed_one_is_tried_again_soon_and_nothing_counts_as_saved(disk: Disk) -> None:
    saves, disk.error = disk.saves(), StorageError("no room")
    saves.save(snapshot(9))
    assert saves.saved_update == 7
    assert [CheckpointFailed("no room")] == disk.events
    with pytest.raises(StorageError, match="no room"):
        saves.check_saved()
    disk.now += RETRY_SECONDS
    assert saves.checkpoint_due()
    disk.error = None
    saves.save(snapshot(10))
    saves.check_saved()
    assert saves.saved_update == 10
    disk.now += RETRY_SECONDS
    assert not saves.checkpoint_due()


@pytest.mark.fault("D08")
@pytest.mark.parametrize("kind", [StorageError, CheckpointError])
def test_training_ends_if_none_could_be_written_for_long(disk: Disk, kind: type[CheckpointError]) -> None:
    saves, disk.error = disk.saves(), kind("the disk is full")
    for _ in range(int(FAILING_SECONDS / RETRY_SECONDS)):
        saves.save(snapshot(9))
        disk.now += RETRY_SECONDS
    with pytest.raises(kind, match=r"the newest is of update 7\. The last error: the disk is full") as raised:
        saves.save(snapshot(9))
    assert kind is type(raised.value)


def test_a_success_in_between_starts_the_time_over(disk: Disk) -> None:
    saves = disk.saves()
    for _ in range(5):
        for disk.error in (StorageError("no room"), StorageError("no room"), None):
            saves.save(snapshot(9))
            disk.now += FAILING_SECONDS / 2


def test_long_updates_get_as_many_tries(disk: Disk) -> None:
    saves, disk.error = disk.saves(), StorageError("no room")
    for _ in range(LEAST_FAILURES - 1):
        saves.save(snapshot(9))
        disk.now += FAILING_SECONDS
    with pytest.raises(StorageError, match=f"in {LEAST_FAILURES} tries"):
        saves.save(snapshot(9))


@pytest.mark.fault("D08")
def test_the_last_one_is_tried_again_and_again_for_a_while(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        disk.now += seconds
        if disk.now > frees_at:
            disk.error = None

    monkeypatch.setattr("time.sleep", sleep)
    saves, disk.error, frees_at = disk.saves(), StorageError("no room"), disk.now + storage.LAST_SECONDS / 2
    saves.save_last(snapshot(9))
    assert saves.saved_update == 9

    began, disk.error, frees_at = disk.now, StorageError("no room"), disk.now * 100
    with pytest.raises(StorageError, match="no room"):
        saves.save_last(snapshot(10))
    assert saves.saved_update == 9
    assert storage.LAST_SECONDS / 2 < disk.now - began <= storage.LAST_SECONDS


def test_the_last_one_is_not_tried_again_if_it_would_fail_again(disk: Disk) -> None:
    saves, disk.error = disk.saves(), CheckpointError("Permission denied")
    with pytest.raises(CheckpointError, match="Permission denied"):
        saves.save_last(snapshot(9))
    assert len(disk.events) == 1
