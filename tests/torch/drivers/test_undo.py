"""What a run undoes once a check has found a worker that computes wrongly, in the driver and in one process."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.errors import ClusterError, WorkloadError
from batchgrowth.growth_decisions import Course
from batchgrowth.position import Position
from batchgrowth_trainer.drivers.run import RunState, Undo
from batchgrowth_trainer.exchange import spot_check
from batchgrowth_trainer.pool.connection import LOST, SchedulerLost
from batchgrowth_trainer.record.checkpoint import CheckpointStore
from batchgrowth_trainer.record.history import History, HistoryRow
from batchgrowth_trainer.record.runs import read_run
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.replica.flat import Partial
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.sinks.events import Event, Undone
from batchgrowth_trainer.training import Options, train


class Seen:
    """A sink that keeps what was undone."""

    def __init__(self) -> None:
        self.undone = list[Undone]()

    def handle(self, event: Event) -> None:
        if isinstance(event, Undone):
            self.undone.append(event)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def run(small_job: Any, tmp_path: Path, seen: Seen) -> Any:
    with closing(History(tmp_path)) as history:
        yield RunState(
            Course(small_job().spec), history=history, checkpoints=CheckpointStore(tmp_path / "checkpoints", {}, 1),
            sinks=[seen], desired_workers=lambda _plan, _position: 1, stop_requested=lambda: False,
        )  # fmt: skip


def train_to(run: RunState, update: int) -> None:
    rows = [HistoryRow(one, one / 12, 0, 8, 0.1, 1.0, 1, 0.1, 0, 0, 0) for one in range(run.reported + 1, update + 1)]
    run.record_rows(rows)


def save(run: RunState) -> None:
    run.save(Snapshot(run.position, {"parameters": torch.zeros(2)}))


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def cover(run: RunState, *, is_of_alone: bool = False) -> None:
    run.record_figures(ExchangeFigures(checks=1, checked_update=run.update), is_of_alone=is_of_alone)


def test_the_newest_checkpoint_that_a_check_covers_is_kept_and_gone_back_to(
    run: RunState, seen: Seen, tmp_path: Path
) -> None:
    """Although only one is kept otherwise; the later ones and their rows are deleted."""
    for update in (2, 4, 6, 8):
        train_to(run, update)
        save(run)
        if update == 4:
            train_to(run, 5)
            cover(run)
    assert saved(tmp_path) == ["update-0000000004", "update-0000000008"]
    train_to(run, 11)
    run.undo(Undo("worker 1 differs", 13))  # the rows of updates 12 and 13 have not come
    assert saved(tmp_path) == ["update-0000000004"]
    run.flush()
    assert [1, 2, 3, 4] == [row.update for row in read_run(tmp_path).history]
    assert (4, 4, 4) == (run.update, run.saved_update, run.covered)
    assert [("worker 1 differs", 9, Position(4, 0, 32))] == [(u.cause, u.updates, u.position) for u in seen.undone]
    found = run.checkpoint_after(0)
    assert found is not None
    assert found.snapshot.position.update == 4


@pytest.mark.fault("C26")
@pytest.mark.parametrize(("is_of_alone", "back_to"), [(True, 4), (False, 8)])
def test_what_a_worker_that_is_wrong_checked_alone_is_not_covered(
    run: RunState, tmp_path: Path, is_of_alone: bool, back_to: int
) -> None:
    """The checkpoint of the last check that compared workers is kept for that."""
    for update in (2, 4, 6, 8, 10):
        train_to(run, update)
        save(run)
        if update in (4, 8):
            train_to(run, update + 1)
            cover(run, is_of_alone=update == 8)
    assert saved(tmp_path) == ["update-0000000004", "update-0000000008", "update-0000000010"]
    known = run.checkpoint_after(0)
    assert known is not None
    assert (known.story["covered"], known.story["compared"]) == (9, 5)

    run.undo(Undo("worker 1 differs", 10, is_of_alone=is_of_alone))

    assert saved(tmp_path) == [f"update-{update:010d}" for update in (4, 8) if update <= back_to]
    assert (run.update, run.covered, run.compared) == (back_to, back_to, min(back_to, 5))


@pytest.mark.fault("C26")
@pytest.mark.parametrize("way", ["undone", "lost", "resumed"])
def test_what_is_made_again_after_training_has_gone_back_is_not_covered(
    run: RunState, small_job: Any, tmp_path: Path, way: str
) -> None:
    """The check after update 7 found nothing, but other workers make the updates from 5 on again."""
    train_to(run, 4)
    state = Snapshot(run.position, {"parameters": torch.zeros(2)})
    train_to(run, 7)
    cover(run)
    run.save(state)
    if way == "undone":
        run.undo(Undo("worker 1 differs", 8))
    elif way == "lost":
        run.go_on_from(4)
    else:
        store = CheckpointStore(tmp_path / "checkpoints", {}, 1)
        run = RunState(
            Course(small_job().spec), history=run._history, checkpoints=store, sinks=[], saved=store.load_latest(print),
            desired_workers=lambda _plan, _position: 1, stop_requested=lambda: False,
        )  # fmt: skip
    assert (4, 4, 4) == (run.update, run.covered, run.compared)
    run.update = 6
    save(run)
    assert saved(tmp_path) == ["update-0000000004", "update-0000000006"]
    run.undo(Undo("worker 2 differs", 8))
    assert saved(tmp_path) == ["update-0000000004"]
    assert run.update == 4


def test_without_a_covered_checkpoint_training_begins_again(run: RunState, seen: Seen, tmp_path: Path) -> None:
    train_to(run, 3)
    cover(run)
    train_to(run, 6)
    save(run)
    run.undo(Undo("worker 1 differs", 6, covered=3))
    assert saved(tmp_path) == []
    assert (0, 0, 0) == (run.update, run.reported, run.saved_update)
    assert [6] == [undone.updates for undone in seen.undone]
    assert run.checkpoint_after(0) is None


def test_findings_without_a_covering_check_in_between_end_the_run(run: RunState) -> None:
    for _ in range(3):
        run.undo(Undo("worker 1 differs", run.update))
    with pytest.raises(ClusterError, match=r"worker 1 differs\. Training has gone back 3 times already"):
        run.undo(Undo("worker 1 differs", run.update))
    run._undone_in_a_row = 3
    train_to(run, 2)
    cover(run)
    run.undo(Undo("worker 1 differs", run.update))


@pytest.mark.fault("C26")
def test_a_run_that_has_gone_back_too_often_leaves_no_checkpoint_that_is_in_doubt(
    run: RunState, seen: Seen, tmp_path: Path
) -> None:
    """Otherwise the next trainer would go on from it, and no check could find what all workers get from it."""
    train_to(run, 4)
    save(run)
    cover(run)
    for _ in range(3):
        run.undo(Undo("worker 1 differs", run.update))
    train_to(run, 6)
    save(run)
    with pytest.raises(ClusterError, match=r"the newest state that a check covers is of update 4\."):
        run.undo(Undo("worker 1 differs", 8))
    assert saved(tmp_path) == ["update-0000000004"]
    assert run.what_is_saved.startswith("the checkpoint of update 4 is in")
    assert [0, 0, 0, 4] == [undone.updates for undone in seen.undone]


@pytest.mark.fault("C26")
def test_a_bit_that_flips_once_in_one_process_is_undone(
    small_job: Any, tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without peers computes the shard twice, and once more for each doubt."""
    monkeypatch.setattr(spot_check, "SHARDS_BETWEEN", 2)
    job = small_job("workload.entrypoint=small:plain")
    undisturbed = train(job, Options(output_dir=tmp_path / "undisturbed"))
    computed = Replica.computed_aside
    flips = [False, False, False, True]

    def once(replica: Replica, *arguments: Any) -> Partial:
        done = computed(replica, *arguments)
        if flips and flips.pop(0):
            done.row[:1].view(torch.int32).bitwise_xor_(1)
        return done

    monkeypatch.setattr(Replica, "computed_aside", once)
    summary = train(job, Options(output_dir=tmp_path / "run"), [seen])
    assert summary["weightsSha256"] == undisturbed["weightsSha256"]
    assert [(4, Position())] == [(undone.updates, undone.position) for undone in seen.undone]
    assert "this process computed shard" in seen.undone[0].cause
    assert [row.update for row in read_run(tmp_path / "run").history] == list(range(1, summary["updates"] + 1))


@pytest.mark.fault("C27")
def test_code_with_several_answers_ends_a_run_in_one_process(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = Replica.computed_aside

    def fickle(replica: Replica, *arguments: Any) -> Partial:
        done = computed(replica, *arguments)
        done.of_parameters[0].add_(torch.rand((), generator=draw))
        return done

    draw = torch.Generator().manual_seed(1)
    monkeypatch.setattr(Replica, "computed_aside", fickle)
    with pytest.raises(WorkloadError, match=r"update \d+, shard \d+: the gradient of model\.0\.weight has other bits"):
        train(small_job("workload.entrypoint=small:plain"), Options(output_dir=tmp_path))


@pytest.mark.parametrize(
    ("ending", "is_told_whole"), [(SchedulerLost(LOST), False), (ZeroDivisionError("division by zero"), True)]
)
def test_without_a_scheduler_it_is_no_wonder_that_no_worker_can_be_asked(
    run: RunState, caplog: pytest.LogCaptureFixture, ending: Exception, is_told_whole: bool
) -> None:
    """What Dask then raises is one line; after another error it is told whole."""

    def save_newest() -> None:
        raise AttributeError("'NoneType' object has no attribute 'broadcast'")

    with pytest.raises(type(ending)), run.saved_before_errors(save_newest):
        raise ending
    assert "the state could not be saved before the run ends: 'NoneType' object" in caplog.text
    assert is_told_whole == ("Traceback" in caplog.text)
