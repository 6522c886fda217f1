"""Checkpoints that cannot be written: training goes on, is saved as soon as possible, and ends after a while."""

import pytest
import torch
from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth.position import Position
from batchgrowth_trainer.drivers import run
from batchgrowth_trainer.drivers.run import FAILING_SECONDS, LEAST_FAILURES, RETRY_SECONDS, Saves
from batchgrowth_trainer.record import storage
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.sinks.events import CheckpointFailed, CheckpointSaved, Event


class Disk:
    """Raises `error` for as long as there is one; `now` is the time, which only a test moves."""

    def __init__(self) -> None:
        self.error: CheckpointError | None = None
        self.now = 100.0
        self.events: list[Event] = []

    def write(self, snapshot: Snapshot) -> int:
        if self.error is not None:
            raise self.error
        return len(snapshot.tensors)

    def saves(self, every_seconds: float = 300) -> Saves:
        return Saves(self.write, every_seconds, self.events.append, 7)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(run.time, "monotonic", lambda: made.now)
    return made


def snapshot(update: int) -> Snapshot:
    return Snapshot(Position(update), {"parameters": torch.zeros(2)})


def test_a_checkpoint_is_due_after_its_period(disk: Disk) -> None:
    saves = disk.saves()
    disk.now += 299
    assert not saves.due()
    disk.now += 1
    assert saves.due()
    saves.save(snapshot(9))
    assert not saves.due()
    assert [CheckpointSaved(9, 0.0, 1)] == disk.events
    assert saves.update == 9


@pytest.mark.fault("D08")
def test_a_failed_one_is_tried_again_soon_and_nothing_counts_as_saved(disk: Disk) -> None:
    saves, disk.error = disk.saves(), StorageError("no room")
    saves.save(snapshot(9))
    assert saves.update == 7
    assert [CheckpointFailed("no room")] == disk.events
    with pytest.raises(StorageError, match="no room"):
        saves.check()
    disk.now += RETRY_SECONDS
    assert saves.due()
    disk.error = None
    saves.save(snapshot(10))
    saves.check()
    assert saves.update == 10
    disk.now += RETRY_SECONDS
    assert not saves.due()


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
    assert saves.update == 9

    began, disk.error, frees_at = disk.now, StorageError("no room"), disk.now * 100
    with pytest.raises(StorageError, match="no room"):
        saves.save_last(snapshot(10))
    assert saves.update == 9
    assert storage.LAST_SECONDS / 2 < disk.now - began <= storage.LAST_SECONDS


def test_the_last_one_is_not_tried_again_if_it_would_fail_again(disk: Disk) -> None:
    saves, disk.error = disk.saves(), CheckpointError("Permission denied")
    with pytest.raises(CheckpointError, match="Permission denied"):
        saves.save_last(snapshot(9))
    assert len(disk.events) == 1
