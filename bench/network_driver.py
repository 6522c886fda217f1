"""The trainer on its host: trains the jobs that standard input names, one after another, for `bench.networks`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from batchgrowth.errors import BatchGrowthError, Interrupted
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.sinks.events import BackedUp, Event, WorkersReady
from batchgrowth_trainer.training import Options, train

from bench.hosts import ROOT, Hosts


@dataclass(frozen=True, slots=True)
class Trained:
    """One training: whether and how it ended, with its times in seconds.

    `accuracies` has the time of each evaluation, from the moment in which the driver knew that all workers were ready
    to that in which it received the evaluation, and what it found; `total_seconds` has the start and the end too.
    `update_seconds` is the mean from the first update to the last. `first_backups` came before their originals, and
    `second_backups` after them.
    """

    error: str = ""
    updates: int = 0
    total_seconds: float = 0.0
    update_seconds: float = 0.0
    accuracies: Sequence[tuple[float, float]] = ()
    weights: str = ""
    recoveries: int = 0
    first_backups: int = 0
    second_backups: int = 0

    def reached(self, accuracy: float) -> float | None:
        """When an evaluation found this accuracy for the first time; None if none did."""
        return next((seconds for seconds, found in self.accuracies if found >= accuracy), None)


class Driver:
    """The process on the first host; `longest` is the time in seconds after which it gives up a job."""

    def __init__(self, hosts: Hosts, scheduler: str, longest: float, output: Path) -> None:
        with output.open("wb") as file:
            self._process = hosts.hosts[0].start(
                [sys.executable, "-m", __name__, scheduler, str(longest)], {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
            )  # fmt: skip
        hosts.owns(self._process)

    def train(self, job: BatchGrowthJob) -> Trained:
        """How the training of this job went. Raises BatchGrowthError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(job.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BatchGrowthError(f"the driver has ended with exit code {self._process.wait()}")
        return Trained(**json.loads(line))


# --- the process ------------------------------------------------------------------------------------------------------


class _Kept:
    """A sink that keeps what `Trained` needs."""

    def __init__(self, workers: int) -> None:
        self.rows: list[HistoryRow] = []
        self.accuracies: list[tuple[float, float]] = []
        self.first = self.second = 0
        self._workers, self._ready_at = workers, time.monotonic()

    def handle(self, event: Event) -> None:
        """See Sink."""
        match event:
            case WorkersReady(count) if count == self._workers and not self.rows:
                self._ready_at = time.monotonic()
            case HistoryRow():
                self.rows.append(event)
            case EvaluationRow():
                self.accuracies.append((time.monotonic() - self._ready_at, event.metrics["accuracy"]))
            case BackedUp(first, second):
                self.first, self.second = self.first + first, self.second + second

    @property
    def update_seconds(self) -> float:
        """The mean from the first update to the last."""
        return (self.rows[-1].seconds - self.rows[0].seconds) / max(1, len(self.rows) - 1)


def _train(job: BatchGrowthJob, scheduler: str, longest: float) -> Trained:
    began, workers = time.monotonic(), job.spec.workers.maximum
    kept = _Kept(workers)
    with tempfile.TemporaryDirectory(prefix="batchgrowth-bench-") as folder:
        options = Options(
            output_dir=Path(folder) / "run", scheduler=scheduler, wanted=lambda _plan, _position: workers,
            paths=(str(ROOT),),
        )  # fmt: skip
        try:
            summary = train(job, options, [kept], lambda: time.monotonic() > began + longest)
        except Interrupted:
            return Trained(error=f"not finished after {longest:.0f} s", updates=len(kept.rows))
        except BatchGrowthError as error:
            return Trained(error=str(error), updates=len(kept.rows))
    return Trained(
        updates=len(kept.rows),
        total_seconds=time.monotonic() - began,
        update_seconds=kept.update_seconds,
        accuracies=kept.accuracies,
        weights=summary["weightsSha256"],
        recoveries=summary["recoveries"],
        first_backups=kept.first,
        second_backups=kept.second,
    )


def main(scheduler: str, longest: float) -> None:
    """Train each job of standard input, and write a line about it, until standard input is closed."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no answer
    for line in sys.stdin:
        trained = _train(BatchGrowthJob.model_validate_json(line), scheduler, longest)
        print(json.dumps(asdict(trained)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
