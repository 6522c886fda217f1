"""How often a run takes the loss of workers: as often as updates lie between, and a bounded number of times without."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.errors import ClusterError
from batchgrowth.growth_decisions import Course
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.record.checkpoint import CheckpointStore
from batchgrowth_trainer.record.history import History
from batchgrowth_trainer.sinks.events import Event, Recovered

MOST = 20


class Seen:
    """A sink that keeps the updates at which workers were lost."""

    def __init__(self) -> None:
        self.updates = list[int]()

    def handle(self, event: Event) -> None:
        if isinstance(event, Recovered):
            self.updates.append(event.update)


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


def lose(run: RunState, times: int) -> None:
    for number in range(times):
        run.record_recovery(f"loss {number + 1}")


@pytest.mark.fault("C01")
def test_workers_that_are_lost_again_and_again_end_the_run(run: RunState, seen: Seen) -> None:
    """With the exit code after which the trainer's Job is tried again, within its own bounds."""
    run.update = 5
    lose(run, MOST)
    with pytest.raises(ClusterError, match="workers were lost 21 times at update 5 without an update in between, last"):
        run.record_recovery("it was killed")
    assert ClusterError.exit_code == 75
    assert seen.updates == [5] * (MOST + 1)


@pytest.mark.fault("C01")
def test_losses_with_updates_in_between_are_not_counted_together(run: RunState, seen: Seen) -> None:
    for update in range(5):
        run.update = update
        lose(run, MOST)
    assert len(seen.updates) == 5 * MOST
