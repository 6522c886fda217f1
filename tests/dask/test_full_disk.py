"""A disk that is full for a while costs time and nothing else."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.sinks.events import CheckpointFailed, CheckpointSaved, Event
from batchgrowth_trainer.training import Options, train

USER_CODE = str(Path(__file__).parent / "user_code")
sys.path.append(USER_CODE)
JOB = (
    "workload.entrypoint=slow_digits:workload",
    "epochs=4",
    "batch={initial: 64, maximum: 64, growth: {type: Constant}}",
    "workers.maximum=2",
)


class Filler:
    """A sink that fills the disk after the first checkpoint, and empties it after the second that failed."""

    def __init__(self, fill: Callable[[], Path]) -> None:
        self._fill, self._stuffing = fill, Path()
        self.events = ""

    def handle(self, event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            self.events += "s"
            if self.events == "s":
                self._stuffing = self._fill()
        elif isinstance(event, CheckpointFailed):
            assert "No space left on device" in event.reason
            self.events += "f"
            if self.events == "sff":
                self._stuffing.unlink()


@pytest.mark.fault("D08")
def test_a_disk_that_is_full_for_a_while(
    digits_job: Any,
    small_disk: Any,
    tmp_path: Path,
    digits_weights: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RunState, "checkpoint_due", lambda run: time.monotonic() - run._save_tried_at > 0.2)
    filler = Filler(small_disk.fill)
    done = train(digits_job(*JOB), Options(output_dir=small_disk.path / "run", paths=(USER_CODE,)), [filler])
    assert filler.events.startswith("sffs")
    assert digits_weights(tmp_path / "alone", "batch.shard=32", *JOB) == done["weightsSha256"]
    history = (small_disk.path / "run" / "history.csv").read_text().splitlines()[1:]
    assert list(range(1, done["updates"] + 1)) == [int(row.split(",")[0]) for row in history]
