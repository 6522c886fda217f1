"""Checkpoints in an object store: whole or absent, never older than before, and with the history that led to them."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
import torch
from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth.position import Position
from batchgrowth.spec import mathematics
from batchgrowth_trainer.record import remote, storage
from batchgrowth_trainer.record.remote import Bucket, RemoteCheckpoints, grown
from batchgrowth_trainer.record.snapshot import Snapshot, weights_sha256
from obstore.store import MemoryStore

STORY = {"seconds": 1.5, "resizes": [], "recoveries": 0, "evaluated": 1, "accuracy": 0.25}
HEADER = "update,loss\n"


def snapshot(update: int) -> Snapshot:
    tensors = {"parameters": torch.arange(40.0) + update, "buffers.bool": torch.tensor([True, False])}
    return Snapshot(Position(update, update // 10, update % 10), tensors)


class Shaky(Bucket):
    """Raises `error` from the call of this number on that writes or deletes."""

    left, error = 10**9, None

    def _tick(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error or StorageError("the store fails for now")

    def put(self, name: str, data: bytes) -> None:
        self._tick()
        super().put(name, data)

    def delete(self, names: Any) -> None:
        self._tick()
        super().delete(names)


class Trainer:
    """A run that writes to the store from a folder of its own."""

    def __init__(self, store: MemoryStore, folder: Path, job: Any, keep: int = 2) -> None:
        folder.mkdir()
        self.folder, self.bucket = folder, Shaky(store, "s3://runs/digits")
        self.checkpoints = RemoteCheckpoints(self.bucket, folder, mathematics(job.spec), keep)
        self.notes: list[str] = []

    def save(self, update: int, story: Any = None) -> None:
        """A checkpoint, with rows up to its update."""
        path = self.folder / "history.csv"
        known = path.read_text().splitlines(keepends=True) if path.exists() else [HEADER]
        path.write_text("".join([*known, *(f"{number},0.5\n" for number in range(len(known), update + 1))]))
        assert self.checkpoints.save(snapshot(update), story or STORY) > 0

    def resume(self) -> int | None:
        """The update from which it goes on."""
        saved = self.checkpoints.resume(self.notes.append)
        return saved.snapshot.position.update if saved else None

    @property
    def rows(self) -> list[str]:
        return (self.folder / "history.csv").read_text().splitlines()[1:]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def trainer(store: MemoryStore, small_job: Any, tmp_path: Path) -> Callable[..., Trainer]:
    """A function: another trainer of the same job."""
    made: list[Trainer] = []

    def another(*overrides: str, keep: int = 2) -> Trainer:
        made.append(Trainer(store, tmp_path / str(len(made)), small_job(*overrides), keep))
        return made[-1]

    return another


def names(store: MemoryStore, folder: str = "") -> list[str]:
    return sorted(meta["path"] for page in obstore.list(store, folder or None) for meta in page)


def content(store: MemoryStore, name: str) -> bytes:
    return bytes(obstore.get(store, name).bytes())


def test_what_was_saved_comes_back_in_another_folder(trainer: Any) -> None:
    first, second = trainer(), trainer()
    first.save(17)
    saved = second.checkpoints.resume(lambda note: pytest.fail(note))
    assert saved is not None
    expected = snapshot(17)
    assert saved.snapshot.position == expected.position
    assert weights_sha256(expected.tensors) == weights_sha256({n: saved.snapshot.tensors[n] for n in expected.tensors})
    assert saved.story == STORY
    assert first.rows == second.rows
    assert len(second.rows) == 17


def test_where_nothing_was_saved_there_is_nothing(trainer: Any) -> None:
    empty = trainer()
    (empty.folder / "summary.json").write_text("{}")
    empty.checkpoints.prepare()
    assert empty.resume() is None
    assert empty.notes + [path.name for path in empty.folder.iterdir()] == []


def test_the_newest_ones_are_kept_with_what_they_need(store: MemoryStore, trainer: Any) -> None:
    run = trainer()
    for update in (5, 90, 100, 2000):
        run.save(update)
    assert [int(name.split("-")[1]) for name in names(store, "states")] == [100, 2000]
    assert [int(name.split("-")[1]) for name in names(store, "checkpoints")] == [100, 2000]
    assert trainer().resume() == 2000
    whole = len((run.folder / "history.csv").read_bytes())
    assert whole < sum(len(content(store, name)) for name in names(store, "rows")) < 2 * whole


@pytest.mark.fault("D09")
@pytest.mark.parametrize("error", [None, KeyboardInterrupt()], ids=["store fails", "killed"])
@pytest.mark.parametrize("again", [False, True], ids=["the next update", "the same update"])
def test_a_save_that_ends_at_any_step_leaves_a_whole_checkpoint(trainer: Any, error: Any, again: bool) -> None:
    first, steps = trainer(keep=1), 0
    first.save(10)
    update = 10 if again else 11
    first.bucket.error = error
    while True:
        first.bucket.left = steps
        try:
            first.save(update, {**STORY, "seconds": 2.0})
        except (StorageError, KeyboardInterrupt):
            assert first.bucket.left < 0
        if first.bucket.left >= 0:
            break
        assert trainer().resume() in (10, update)
        steps += 1
    assert steps >= (1 if again else 3)
    last = trainer()
    assert update == last.resume() == len(last.rows)


@pytest.mark.fault("D13")
def test_a_trainer_that_is_late_replaces_nothing(store: MemoryStore, trainer: Any) -> None:
    """Its node was cut off, and came back after another trainer had gone further."""
    late = trainer()
    late.save(10)
    other = trainer()
    assert other.resume() == 10
    other.save(20)
    other.save(30)
    late.save(11)
    assert [int(name.split("-")[1]) for name in names(store, "states")] == [11, 20, 30]
    other.save(40)
    third = trainer()
    assert 40 == third.resume() == len(third.rows)
    with pytest.raises(StorageError, match=r"another trainer .* has saved update 40, beyond update 11 of this one"):
        late.checkpoints.load_latest(lambda note: None)
    saved = other.checkpoints.load_latest(lambda note: None)
    assert saved is not None
    assert saved.snapshot.position.update == 40


def test_a_manifest_whose_answer_was_lost_is_of_no_other_trainer(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has it, and the trainer that wrote it goes on from it after the loss of its scheduler."""
    mine = trainer()
    mine.save(10)
    put = Bucket.put

    def unanswered(bucket: Bucket, name: str, data: bytes) -> None:
        put(bucket, name, data)
        if name.startswith("checkpoints/"):
            raise StorageError("the store does not answer")

    monkeypatch.setattr(Bucket, "put", unanswered)
    with pytest.raises(StorageError, match="does not answer"):
        mine.save(20)

    assert mine.checkpoints.load_latest(mine.notes.append).snapshot.position.update == 20


@pytest.mark.fault("D13")
def test_two_trainers_at_once_share_the_states_and_leave_each_other_theirs(store: MemoryStore, trainer: Any) -> None:
    one, other = trainer(keep=1), trainer(keep=1)
    for update in (10, 20, 30):
        one.save(update)
        other.save(update, {**STORY, "seconds": 3.5})
    assert len(names(store, "states")) == 1
    assert len(names(store, "checkpoints")) == 2
    other.save(40)
    one.save(31)
    assert one.checkpoints._update == 31
    third = trainer()
    assert 40 == third.resume() == len(third.rows)


@pytest.mark.fault("C26")
def test_what_was_computed_wrongly_is_dropped_and_made_again(store: MemoryStore, trainer: Any) -> None:
    """The newest checkpoint that a check covers was kept beyond `keep`, and another trainer resumes there."""
    run = trainer(keep=1)
    run.save(10, {**STORY, "covered": 12})
    for update in (20, 30):
        run.save(update, {**STORY, "covered": 12})
    assert ["0000000010", "0000000030"] == [name.split("-")[1] for name in names(store, "checkpoints")]

    run.checkpoints.drop_after(12)

    assert ["0000000010"] == [name.split("-")[1] for name in names(store, "checkpoints")]
    gone_back = run.checkpoints.load_latest(run.notes.append)
    assert gone_back.snapshot.position.update == 10
    assert 10 == trainer().resume()

    # The rows are cut as the run does it, and other rows of the same length come after them.
    run.folder.joinpath("history.csv").write_text(HEADER + "".join(f"{n},0.5\n" for n in range(1, 11)))
    with run.folder.joinpath("history.csv").open("a") as file:
        file.writelines(f"{n},0.7\n" for n in range(11, 21))
    run.save(20, {**STORY, "covered": 12})
    again = trainer()
    assert 20 == again.resume() == len(again.rows)
    assert [f"{n},0.7" for n in range(11, 21)] == again.rows[10:]


@pytest.mark.fault("C26")
def test_without_a_covered_checkpoint_nothing_is_left(store: MemoryStore, trainer: Any) -> None:
    run = trainer()
    run.save(10)
    run.checkpoints.drop_after(9)
    assert run.checkpoints.load_latest(run.notes.append) is None
    assert trainer().resume() is None


@pytest.mark.fault("C26")
def test_a_store_that_fails_for_now_is_asked_again_to_drop(
    store: MemoryStore, trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer()
    run.save(10)
    monkeypatch.setattr(storage, "READ_SECONDS", 0.0)
    run.bucket.left = 0
    with pytest.raises(StorageError, match="for now"):
        run.checkpoints.drop_after(9)
    run.bucket.left = 1
    run.checkpoints.drop_after(9)
    assert [] == names(store, "checkpoints")


def flip(store: MemoryStore, name: str) -> None:
    data = bytearray(content(store, name))
    data[len(data) // 2] ^= 4
    obstore.put(store, name, bytes(data))


def remove(store: MemoryStore, name: str) -> None:
    obstore.delete(store, name)


def truncate(store: MemoryStore, name: str) -> None:
    obstore.put(store, name, content(store, name)[:-7])


@pytest.mark.fault("D10")
@pytest.mark.parametrize("part", ["checkpoints", "states", "rows"])
@pytest.mark.parametrize("damage", [flip, remove, truncate], ids=lambda damage: damage.__name__)
def test_a_damaged_one_is_set_aside_and_the_one_before_it_is_taken(
    store: MemoryStore, trainer: Any, damage: Any, part: str
) -> None:
    first = trainer()
    first.save(30)
    before = names(store)
    first.save(31)
    [hit] = [name for name in names(store, part) if name not in before]
    damage(store, hit)
    second = trainer()
    assert 30 == second.resume() == len(second.rows)
    unseen = (part, damage) == ("checkpoints", remove)  # without its manifest it is none
    assert len(second.notes) == (0 if unseen else 1)
    second.save(31)
    assert trainer().resume() == 31


@pytest.mark.fault("D10")
def test_where_none_is_whole_that_is_an_error_and_stays_one(store: MemoryStore, trainer: Any) -> None:
    trainer().save(1)
    flip(store, names(store, "states")[0])
    for _ in range(2):
        with pytest.raises(
            CheckpointError, match=r"s3://runs/digits: no checkpoint is whole \(update-0000000001-.*other"
        ):
            trainer().resume()


@pytest.mark.fault("D12")
def test_a_checkpoint_of_another_job_is_refused(trainer: Any) -> None:
    trainer().save(1)
    with pytest.raises(CheckpointError, match=r"seed: 3 there, 4 here.* another spec\.checkpoint\.uri"):
        trainer("seed=4").resume()


def test_an_unreadable_store_is_no_empty_one(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "READ_SECONDS", 0.0)
    run = trainer()
    run.save(1)
    monkeypatch.setattr(Bucket, "entries", lambda *_: (_ for _ in ()).throw(StorageError("the store fails for now")))
    with pytest.raises(StorageError, match="the store fails for now"):
        trainer().resume()


def test_what_a_killed_trainer_left_is_swept_once_it_is_old(
    store: MemoryStore, trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, other = trainer(), trainer()
    killed.bucket.left = 1
    with pytest.raises(StorageError):
        killed.save(5)
    assert len(names(store, "states")) == 1
    other.save(6)
    other.checkpoints.prepare()
    assert len(names(store, "states")) == 2
    monkeypatch.setattr(remote, "_ORPHANED", timedelta(0))
    other.checkpoints.prepare()
    assert len(names(store, "states")) == 1
    assert trainer().resume() == 6


def test_a_store_that_cannot_be_written_is_found_before_the_training(trainer: Any) -> None:
    run = trainer()
    run.bucket.left, run.bucket.error = 0, CheckpointError("access is denied")
    with pytest.raises(CheckpointError, match="access is denied"):
        run.checkpoints.prepare()


def test_the_results_are_kept_and_come_back(store: MemoryStore, trainer: Any) -> None:
    run = trainer()
    run.save(3)
    (run.folder / "summary.json").write_text('{"updates": 3}')
    (run.folder / "model.safetensors").write_bytes(b"weights")
    run.checkpoints.keep_results()
    assert {"history.csv", "model.safetensors", "summary.json"} <= set(names(store))
    again = trainer()
    assert again.resume() == 3
    assert (again.folder / "summary.json").read_text() == '{"updates": 3}'


# --- the rows -----------------------------------------------------------------------------------------------------


def test_pieces_are_few_and_every_byte_is_uploaded_seldom() -> None:
    ends, uploaded = list[int](), 0
    for size in range(1000, 1_000_001, 1000):
        before, ends = set(zip([0, *ends], ends, strict=False)), grown(ends, size)
        now = list(zip([0, *ends], ends, strict=False))
        assert size == ends[-1] == sum(end - begin for begin, end in now)
        assert len(ends) <= 11
        uploaded += sum(end - begin for begin, end in now if (begin, end) not in before)
    assert uploaded < 11 * 1_000_000
    assert ends == grown(ends, ends[-1])


def test_no_piece_exceeds_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LARGEST_BYTES", 100)
    assert grown([], 250) == [100, 200, 250]
    assert grown(grown([], 250), 300) == [100, 200, 300]
    ends = list[int]()
    for size in range(1, 2000, 7):
        ends = grown(ends, size)
        assert max(end - begin for begin, end in zip([0, *ends], ends, strict=False)) <= 100
    assert len(ends) < 50


def test_rows_beyond_the_checkpoint_are_dropped_and_written_again(store: MemoryStore, trainer: Any) -> None:
    first, second = trainer(), trainer()
    (first.folder / "history.csv").write_text(HEADER + "".join(f"{number},0.5\n" for number in range(1, 9)))
    first.checkpoints.save(snapshot(6), STORY)
    assert 6 == second.resume() == len(second.rows)
    second.folder.joinpath("history.csv").write_text("\n".join(["update,loss", *second.rows, "7,0.25", "8,0.25", ""]))
    second.save(9)
    third = trainer()
    assert third.resume() == 9
    assert third.rows[6:] == ["7,0.25", "8,0.25", "9,0.5"]
