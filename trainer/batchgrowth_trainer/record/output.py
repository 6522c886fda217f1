"""A run's output folder: its lock, the results of earlier runs, and the files written at the end."""

import fcntl
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from batchgrowth.errors import CheckpointError, Interrupted, StorageError, Superseded
from batchgrowth.manifest.files import read_regular
from batchgrowth.spec import BatchGrowthJob

from batchgrowth_trainer.record.checkpoint import folders_in
from batchgrowth_trainer.record.functions import FUNCTION_FILE
from batchgrowth_trainer.record.history import EVALUATIONS_FILE, GROWTH_FILE, HISTORY_FILE
from batchgrowth_trainer.record.runs import JOB_FILE, manifest_text
from batchgrowth_trainer.record.storage import CHECKPOINTS, open_own, replace_file, storage_error
from batchgrowth_trainer.record.summary import SUMMARY_FILE, read_summary
from batchgrowth_trainer.record.workload_source import ORIGIN_FILE

EARLIER = "earlier"
WEIGHTS_FILE = "model.safetensors"
BEST_FILE = "best.safetensors"
JOURNAL_FILE = "journal.jsonl"
TRACKING_FOLDER = "trackers"
"""Folder of the files that say how far each tracker has recorded the run. The folders below have the records of
trackers that have no other place for them.
"""
TENSORBOARD_FOLDER = "tensorboard"
MLFLOW_FOLDER = "mlflow"
_WANDB_FOLDER = "wandb"  # its library's own choice
_OF_A_RUN = (
    SUMMARY_FILE,
    CHECKPOINTS,
    JOB_FILE,
    FUNCTION_FILE,
    ORIGIN_FILE,
    HISTORY_FILE,
    EVALUATIONS_FILE,
    GROWTH_FILE,
    JOURNAL_FILE,
    f"older-{JOURNAL_FILE}",
    WEIGHTS_FILE,
    BEST_FILE,
    "plot.png",
    "plot.html",
    TRACKING_FOLDER,
    TENSORBOARD_FOLDER,
    MLFLOW_FOLDER,
    _WANDB_FOLDER,
)
_SHARED = (FUNCTION_FILE, ORIGIN_FILE, HISTORY_FILE, EVALUATIONS_FILE, GROWTH_FILE)
_RESULTS = ("plot.png", "plot.html", JOB_FILE, BEST_FILE, WEIGHTS_FILE, SUMMARY_FILE)
_LOCK_FILE = ".lock"
_LOCK_RETRY_SECONDS = 0.5


class OutputFolder:
    """The output folder, locked for one run.

    If another run holds the lock, this waits up to `patience` seconds and calls `note` once. The lock's file names
    its holder, because a file server may release the lock of a machine that it cannot reach. Raises StorageError if
    the lock stays held, CheckpointError if the folder cannot be written, and Interrupted if a stop is requested
    while it waits.
    """

    def __init__(
        self,
        path: Path,
        *,
        patience: float = 0.0,
        stop_requested: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.path = path
        make_folder(path)
        try:
            self._lock = open_own(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)  # who can open it can lock it
        except OSError as error:
            if not os.path.lexists(path / _LOCK_FILE):
                raise _cannot_write(path, error) from error
            text = f"--output-dir {path}: {_LOCK_FILE} cannot be opened ({error.strerror}); give it to this user"
            raise storage_error(f"{text}, or give another folder", error) from error
        self._token = uuid.uuid4().hex.encode()
        try:
            self._wait_for_lock(patience, stop_requested, note)
            try:
                os.pwrite(self._lock, self._token, 0)
                os.fsync(self._lock)
            except OSError as error:
                raise _cannot_write(path, error) from error
        except BaseException:
            self.close()
            raise

    def _wait_for_lock(self, patience: float, stop_requested: Callable[[], bool], note: Callable[[str], None]) -> None:
        ends = time.monotonic() + patience
        held = f"--output-dir {self.path}: another run is writing there"
        waits = False
        while not self._is_locked():
            if time.monotonic() >= ends:
                raise StorageError(f"{held}; wait for it or give another folder")
            if stop_requested():
                raise Interrupted(f"stopped while waiting for the other run that writes to {self.path}")
            if not waits:
                waits = True
                note(f"{held}; waiting up to {patience:.0f} s for its end")
            time.sleep(_LOCK_RETRY_SECONDS)

    def _is_locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise storage_error(
                f"--output-dir {self.path}: cannot be locked ({error.strerror}); give a folder that can", error
            ) from error
        return True

    def check_held(self) -> None:
        """Raise Superseded if another run has locked the folder meanwhile, StorageError if the lock cannot be read."""
        try:
            holder = read_regular(self.path / _LOCK_FILE)
        except FileNotFoundError:
            return  # removed by a user; no other run has made it again
        except OSError as error:
            raise StorageError(f"{self.path / _LOCK_FILE} cannot be read ({error.strerror}); try again") from error
        if holder != self._token:
            raise Superseded(f"--output-dir {self.path}: another run has taken over the folder, so this one ends")

    def close(self) -> None:
        """Unlock the folder, even if processes that were forked from this one, such as loaders, still run."""
        with suppress(OSError):  # of a file server; closing unlocks it too
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of the finished run; None if it must be written, because it is missing or damaged."""
        try:
            return read_summary(self.path)
        except CheckpointError:
            return None

    @property
    def has_a_run(self) -> bool:
        """Return whether the folder has files of a run."""
        return any((self.path / name).exists() for name in _OF_A_RUN)

    @property
    def has_weights(self) -> bool:
        """Return whether the final weights are here; a resume writes them again if they are not."""
        return (self.path / WEIGHTS_FILE).is_file()

    def earlier_checkpoints(self) -> list[Path]:
        """Return the folders of earlier runs that have checkpoints, the newest run first."""
        runs = sorted((path for path in (self.path / EARLIER).glob("*") if path.is_dir()), key=_age, reverse=True)
        return [path for path in runs if folders_in(path / CHECKPOINTS)]

    def set_earlier_run_aside(self) -> Path | None:
        """Move the files of an earlier run into earlier/N, and return that folder; None if there were no files."""
        left = [self.path / name for name in _OF_A_RUN if (self.path / name).exists()]
        if not left:
            return None
        aside = self._new_earlier()
        for path in left:
            path.rename(aside / path.name)
        return aside

    def set_results_aside(self) -> Path:
        """Move the results of a finished run into earlier/N before the run goes on, with copies of its history, and
        return that folder.
        """
        aside = self._new_earlier()
        # Copied, since the run that goes on appends to them; it writes the results again.
        for name in _SHARED:
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, aside / name)
        for name in _RESULTS:
            if (self.path / name).is_file():
                (self.path / name).rename(aside / name)
        return aside

    def _new_earlier(self) -> Path:
        names = (path.name for path in (self.path / EARLIER).glob("*"))
        number = 1 + max((int(name) for name in names if name.isdecimal()), default=0)  # a user may rename some
        aside = self.path / EARLIER / str(number)
        aside.mkdir(parents=True)
        return aside

    def write(self, name: str, data: bytes) -> Path:
        """Write a file completely or not at all. Raises CheckpointError; Superseded if another run took the folder."""
        self.check_held()
        target = self.path / name
        try:
            replace_file(target, data)
        except OSError as error:
            raise storage_error(
                f"{target} could not be written ({error.strerror}); make room and --resume", error
            ) from error
        return target

    def write_job(self, job: BatchGrowthJob) -> Path:
        """Write job.yaml: the manifest, with every override and default."""
        return self.write(JOB_FILE, manifest_text(job).encode())

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        """Write summary.json, whose presence marks the run as finished."""
        return self.write(SUMMARY_FILE, (json_text(summary) + "\n").encode())


def json_text(values: Mapping[str, Any]) -> str:
    """Return the values as JSON that every reader takes: a number that is not finite is null, as JSON has no NaN."""
    return json.dumps(_finite(values), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _age(earlier: Path) -> tuple[int, str]:
    return (int(earlier.name) if earlier.name.isdecimal() else 0, earlier.name)


def make_folder(path: Path) -> None:
    """Make the folder and its missing parents. Raises CheckpointError, or StorageError if a retry may help."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> CheckpointError:
    return storage_error(f"--output-dir {path}: {error.strerror}; give a folder that can be written", error)
