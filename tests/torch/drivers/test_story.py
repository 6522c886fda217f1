"""What a run that goes on from a checkpoint takes over from the run before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.growth_decisions import Course
from batchgrowth.position import Position
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.record.checkpoint import CheckpointStore, Saved
from batchgrowth_trainer.record.history import Committed, History, HistoryRow
from batchgrowth_trainer.record.snapshot import Snapshot

FIRST, SECOND = Position(12, 1, 0), Position(18, 2, 0)  # where epochs end
BETWEEN = Position(17, 1, 80)


@contextmanager
def a_run(job: Any, folder: Path, saved: Saved | None = None) -> Iterator[RunState]:
    history, store = History(folder), CheckpointStore(folder / "checkpoints", {}, 1)
    if saved is not None:
        history.truncate(saved.snapshot.position.update)
    try:
        yield RunState(
            Course(job.spec), history=history, checkpoints=store, sinks=(), desired_workers=lambda _plan, _position: 1,
            stop_requested=lambda: False, saved=saved,
        )  # fmt: skip
    finally:
        history.close()


def test_an_evaluation_after_the_checkpoint_is_repeated(small_job: Any, tmp_path: Path) -> None:
    """A member trains on once it has handed out its state, so a later evaluation may be known before that is saved."""
    evaluations = tmp_path / "evaluations.csv"
    with a_run(small_job(), tmp_path) as run:
        run.record_evaluation(FIRST, {"loss": 0.5, "accuracy": 0.5}, 1.7e9)
        run.record_evaluation(SECOND, {"loss": 0.4, "accuracy": 0.75}, 1.7e9)
        run.save(Snapshot(BETWEEN, {"parameters": torch.zeros(2)}))
    whole = evaluations.read_text()

    saved = CheckpointStore(tmp_path / "checkpoints", {}, 1).resume(print)
    assert saved is not None
    with a_run(small_job(), tmp_path, saved) as run:
        assert not run.evaluation_due(FIRST)
        assert run.evaluation_due(SECOND)
        run.record_evaluation(SECOND, {"loss": 0.4, "accuracy": 0.75}, 1.7e9)
        assert run.totals.accuracy == 0.75
    assert whole == evaluations.read_text()


def test_a_clock_that_is_set_back_takes_no_time_away(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_run(small_job(), tmp_path) as run:
        plan = run.plan
        step = plan.step_at(Position())
        monkeypatch.setattr("time.time", lambda: 1000.0)
        run.record_rows([HistoryRow.now(step, plan, Committed(0.5, 0.1, stop=False), 1, (60.0, 0.0, 0.0))])
        monkeypatch.setattr("time.time", lambda: 400.0)

        assert run.seconds == 60.0
