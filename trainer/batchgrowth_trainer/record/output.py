"""A run's output folder: its lock, the results of earlier runs, and the files written at the end."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchgrowth.errors import CheckpointError
from batchgrowth.spec import BatchGrowthJob

from batchgrowth_trainer.record.files import replace_file
from batchgrowth_trainer.record.history import EVALUATIONS_FILE, GROWTH_FILE, HISTORY_FILE
from batchgrowth_trainer.record.replay import JOB_FILE, manifest_text
from batchgrowth_trainer.record.runs import SUMMARY_FILE, read_summary

CHECKPOINTS, EARLIER, WEIGHTS_FILE = "checkpoints", "earlier", "model.safetensors"
_OF_A_RUN = (
    SUMMARY_FILE,
    CHECKPOINTS,
    JOB_FILE,
    HISTORY_FILE,
    EVALUATIONS_FILE,
    GROWTH_FILE,
    WEIGHTS_FILE,
    "plot.png",
    "plot.html",
)


@contextmanager
def reported_as_checkpoint_error() -> Iterator[None]:
    """Turn an OSError raised inside the block, for a file that a run writes, into a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{error.filename} could not be written ({error.strerror}); make room, or give another --output-dir. "
            "The checkpoints are intact, and --resume continues from the newest."
        ) from error


class OutputFolder:
    """The folder, locked for one run. Raises CheckpointError if it cannot be written or another run holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CheckpointError(
                f"--output-dir {path}: {error.strerror}; give a folder that can be written"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise CheckpointError(
                f"--output-dir {path}: another run is writing there; wait for it or give another folder"
            ) from error

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)

    def summary(self) -> dict[str, Any] | None:
        """The summary of the finished run in this folder; None if it is missing or damaged, so that it is rewritten."""
        try:
            return read_summary(self.path)
        except CheckpointError:
            return None

    def set_earlier_run_aside(self) -> Path | None:
        """Move the files of an earlier run into earlier/N, which is returned; None if there were none."""
        left = [self.path / name for name in _OF_A_RUN if (self.path / name).exists()]
        if not left:
            return None
        number = 1 + max((int(p.name) for p in (self.path / EARLIER).glob("[0-9]*")), default=0)
        aside = self.path / EARLIER / str(number)
        aside.mkdir(parents=True)
        for path in left:
            path.rename(aside / path.name)
        return aside

    def write(self, name: str, data: bytes) -> Path:
        """Write a file whole or not at all. Raises CheckpointError."""
        target = self.path / name
        try:
            replace_file(target, data)
        except OSError as error:
            raise CheckpointError(
                f"{target} could not be written ({error.strerror}); make room and --resume"
            ) from error
        return target

    def write_job(self, job: BatchGrowthJob) -> Path:
        """Write job.yaml: the manifest, with every override and default."""
        return self.write(JOB_FILE, manifest_text(job).encode())

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        """Write summary.json, whose presence marks the run as finished."""
        return self.write(SUMMARY_FILE, (json.dumps(summary, indent=2) + "\n").encode())
