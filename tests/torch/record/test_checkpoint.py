"""Checkpoints are whole or absent, belong to one job, and execute no code."""

import errno
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth.position import Position
from batchgrowth.spec import mathematics
from batchgrowth_trainer.record import checkpoint, storage
from batchgrowth_trainer.record.checkpoint import CheckpointStore
from batchgrowth_trainer.record.snapshot import Snapshot, weights_sha256

STORY = {"seconds": 1.5, "resizes": [], "recoveries": 0, "evaluated": 1, "accuracy": 0.25}


def snapshot(update: int) -> Snapshot:
    tensors = {"parameters": torch.arange(40.0) + update, "buffers.int64": torch.tensor([update]),
               "buffers.bool": torch.tensor([True, False])}  # fmt: skip
    return Snapshot(Position(update, update // 10, update % 10), tensors)


@pytest.fixture
def store(tmp_path: Path, small_job: Any) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", mathematics(small_job().spec), keep=2)


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def latest(store: CheckpointStore) -> int:
    saved = store.load_latest(lambda note: None)
    assert saved is not None
    return saved.snapshot.position.update


def newest(store: CheckpointStore, file: str = "state.safetensors") -> Path:
    return max(store.directory.glob("update-*")) / file


def test_what_was_saved_comes_back(store: CheckpointStore) -> None:
    expected = snapshot(17)
    assert store.save(expected, STORY) == newest(store).stat().st_size
    saved = store.load_latest(lambda note: pytest.fail(note))
    assert saved is not None
    assert saved.snapshot.position == expected.position
    assert expected.tensors.keys() == saved.snapshot.tensors.keys()
    assert weights_sha256(expected.tensors) == weights_sha256({n: saved.snapshot.tensors[n] for n in expected.tensors})
    assert saved.story == STORY


def test_where_nothing_was_saved_there_is_nothing(store: CheckpointStore) -> None:
    assert store.load_latest(lambda note: pytest.fail(note)) is None


def test_the_newest_ones_are_kept(store: CheckpointStore) -> None:
    for update in (5, 90, 100, 2000):
        store.save(snapshot(update), STORY)
    assert names(store) == ["update-0000000100", "update-0000002000"]


def test_the_same_update_may_be_saved_again_and_again(store: CheckpointStore) -> None:
    for seconds in (1.0, 2.0, 3.0, 4.0):
        store.save(snapshot(7), {**STORY, "seconds": seconds})
        saved = store.load_latest(lambda note: None)
        assert saved is not None
        assert seconds == saved.story["seconds"]
        assert len(names(store)) == 1


@pytest.mark.fault("D09")
def test_what_a_crash_left_is_swept(store: CheckpointStore) -> None:
    store.save(snapshot(5), STORY)
    (store.directory / ".unfinished-123-0000000009").mkdir()
    (store.directory / ".unfinished-123-0000000009" / "state.safetensors").write_bytes(b"half")
    assert latest(store) == 5
    store.prepare()
    assert names(store) == ["update-0000000005"]


# --- interrupted at every step ------------------------------------------------------------------------------------


class Fuse:
    """Raises after a number of file system calls, as a full disk or a crash would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
        self.left, self.blown, self._error = 10**9, False, error
        calls = [(Path, "mkdir"), (Path, "rename"), (os, "fsync"), (os, "open")]
        # A full disk does not prevent deletion.
        for owner, name in calls if isinstance(error, OSError) else [*calls, (checkpoint.shutil, "rmtree")]:
            monkeypatch.setattr(owner, name, self._guarded(getattr(owner, name)))

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                self.blown = True
                raise self._error
            return call(*arguments, **named)

        return guarded


@pytest.mark.fault("D09")
@pytest.mark.parametrize("again", [False, True], ids=["the next update", "the same update"])
@pytest.mark.parametrize("kind", ["disk full", "killed"])
def test_a_save_that_ends_at_any_step_leaves_a_whole_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, again: bool, kind: str
) -> None:
    """Also with keep = 1, when the previous one is the only one."""
    store._keep = 1
    store.save(snapshot(10), STORY)
    update = 10 if again else 11
    error = OSError(errno.ENOSPC, "No space left on device") if kind == "disk full" else KeyboardInterrupt()
    fuse, steps = Fuse(monkeypatch, error), 0
    failures = (CheckpointError,) if kind == "disk full" else (CheckpointError, KeyboardInterrupt)
    while True:
        fuse.left, fuse.blown = steps, False
        try:
            store.save(snapshot(update), STORY)
        except failures:
            assert fuse.blown
        fuse.left, done = 10**9, not fuse.blown
        assert latest(store) in (10, update)
        if done:
            break
        steps += 1
    assert steps >= 8
    assert update == latest(store)
    store.prepare()
    assert len(names(store)) == 1


@pytest.mark.fault("D08")
def test_a_full_disk_is_told_in_one_paragraph(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(snapshot(1), STORY)
    Fuse(monkeypatch, OSError(errno.ENOSPC, "No space left on device")).left = 4
    with pytest.raises(CheckpointError, match=r"update 2 could not be written \(No space left on device\)") as raised:
        store.save(snapshot(2), STORY)
    assert "Earlier checkpoints are intact" in str(raised.value)
    assert "\n" not in str(raised.value)


# --- damaged ------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.fault("D10")
@pytest.mark.parametrize("file", ["state.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", [truncate, empty, flip, remove], ids=lambda damage: damage.__name__)
def test_a_damaged_one_is_told_of_and_the_one_before_it_is_taken(
    store: CheckpointStore, damage: Callable[[Path], None], file: str
) -> None:
    store.save(snapshot(1), STORY)
    store.save(snapshot(2), STORY)
    damage(newest(store, file))
    notes: list[str] = []
    saved = store.load_latest(notes.append)
    assert saved is not None
    assert saved.snapshot.position.update == 1
    assert len(notes) == 1
    assert f"update-0000000002: {file}" in notes[0]


@pytest.mark.fault("D10")
def test_every_bit_of_the_manifest_counts(store: CheckpointStore) -> None:
    """A position that is off by one update would silently change the weights."""
    store.save(snapshot(12), STORY)
    path = newest(store, "manifest.json")
    whole = path.read_text()
    for there, here in (('"update": 12', '"update": 13'), ('"offset": 2', '"offset": 3'), ("1.5", "2.5")):
        assert there in whole
        path.write_text(whole.replace(there, here))
        with pytest.raises(CheckpointError, match=r"manifest\.json is not what was written"):
            store.load_latest(lambda note: None)


def test_a_damaged_newer_one_never_pushes_out_a_whole_one(store: CheckpointStore) -> None:
    store._keep = 1
    store.save(snapshot(1), STORY)
    store._keep = 2
    store.save(snapshot(50), STORY)
    flip(newest(store))
    assert latest(store) == 1
    store._keep = 1
    store.save(snapshot(9), STORY)
    assert latest(store) == 9
    assert names(store) == ["damaged-update-0000000050", "update-0000000009"]


@pytest.mark.fault("D10")
def test_where_none_is_whole_that_is_an_error_and_stays_one(store: CheckpointStore) -> None:
    for update in (1, 2):
        store.save(snapshot(update), STORY)
        truncate(newest(store))
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"no checkpoint is whole \(update-0000000002: .*update-0000000001: "):
            store.load_latest(lambda note: None)


# --- unreadable ---------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, str, int], None]:
    """A function: from now on a call that reads fails for paths with that word, by that error."""
    monkeypatch.setattr(storage, "READ_SECONDS", 0.0)

    def set_up(owner: Any, call: str, word: str, number: int) -> None:
        read = getattr(owner, call)

        def guarded(path: Path, *given: Any) -> Any:
            if word in str(path):
                raise OSError(number, os.strerror(number), str(path))
            return read(path, *given)

        monkeypatch.setattr(owner, call, guarded)

    return set_up


@pytest.mark.fault("D10")
def test_one_that_cannot_be_read_is_left_for_the_one_before_it(store: CheckpointStore, failing: Any) -> None:
    store.save(snapshot(1), STORY)
    store.save(snapshot(2), STORY)
    failing(checkpoint, "read_regular", "update-0000000002/state", errno.EIO)
    notes: list[str] = []
    saved = store.load_latest(notes.append)
    assert saved is not None
    assert saved.snapshot.position.update == 1
    assert "state.safetensors cannot be read (Input/output error)" in notes[0]


@pytest.mark.fault("D08")
def test_if_none_can_be_read_but_may_be_later_that_is_no_end(store: CheckpointStore, failing: Any) -> None:
    store.save(snapshot(1), STORY)
    store.save(snapshot(2), STORY)
    truncate(newest(store))
    failing(checkpoint, "read_regular", "update-0000000001/manifest", errno.ESTALE)
    with pytest.raises(StorageError, match=r"no checkpoint is whole .*cannot be read \(Stale file handle\)"):
        store.load_latest(lambda note: None)
    assert len(names(store)) == 2, "none was set aside"


@pytest.mark.fault("D08")
@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, StorageError), (errno.EACCES, CheckpointError)])
def test_a_folder_that_cannot_be_listed_is_not_a_new_beginning(
    store: CheckpointStore, failing: Any, number: int, kind: type[Exception]
) -> None:
    store.save(snapshot(1), STORY)
    failing(os, "listdir", "checkpoints", number)
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be read") as raised:
        store.load_latest(lambda note: None)
    assert kind is type(raised.value)


# --- foreign ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("D12", "D14")
@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("seed=4", "seed: 3 there, 4 here"),
        ("epochs=5", "epochs: 4 there, 5 here"),
        ("learningRate.initial=0.06", 'learningRate.initial: "0.05" there, "0.06" here'),
        ("workload.examples=91", "workload.examples: 90 there, 91 here"),
        ("batch.growth.geometric.factor=3", 'batch.growth.geometric.factor: "2" there, "3" here'),
        ("workers.threads=2", "workers.threads: 1 there, 2 here"),
    ],
)
def test_a_checkpoint_of_another_job_names_the_field(
    store: CheckpointStore, small_job: Any, override: str, difference: str
) -> None:
    store.save(snapshot(1), STORY)
    other = CheckpointStore(store.directory, mathematics(small_job(override).spec), keep=2)
    with pytest.raises(CheckpointError, match="belongs to another job") as raised:
        other.load_latest(lambda note: None)
    assert difference in str(raised.value)


@pytest.mark.fault("D12")
@pytest.mark.parametrize("override", ["workers.maximum=7", "checkpoint.everySeconds=9", "exchange.type=AllReduce"])
def test_speed_may_change_under_way(store: CheckpointStore, small_job: Any, override: str) -> None:
    store.save(snapshot(1), STORY)
    assert latest(CheckpointStore(store.directory, mathematics(small_job(override).spec), keep=2)) == 1


@pytest.mark.fault("D12")
def test_a_checkpoint_of_another_model_does_not_fit() -> None:
    live = {"parameters": torch.zeros(41), "buffers.int64": torch.zeros(1, dtype=torch.int64)}
    with pytest.raises(CheckpointError, match="parameters: saved 40 x float32, needed 41 x float32") as raised:
        snapshot(1).check_fits(live)
    assert "buffers.bool: saved 2 x bool, needed nothing" in str(raised.value)


class Trap:
    """Executes something when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.fault("D11")
def test_a_pickle_in_its_place_is_never_executed(store: CheckpointStore, tmp_path: Path) -> None:
    """Not even one whose digest is right."""
    store.save(snapshot(1), STORY)
    sprung, path = tmp_path / "sprung", newest(store)
    path.write_bytes(pickle.dumps(Trap(sprung)))
    manifest = json.loads(newest(store, "manifest.json").read_text())
    del manifest["digest"]
    manifest |= {"sha256": checkpoint.sha256(path.read_bytes()), "bytes": path.stat().st_size}
    manifest["digest"] = checkpoint.digest(manifest)
    newest(store, "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="is no safetensors file"):
        store.load_latest(lambda note: None)
    assert not sprung.exists()
    pickle.loads(path.read_bytes())
    assert sprung.exists()
