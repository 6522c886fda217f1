"""The trainer on its host, for `bench.networks`: train the jobs on standard input, one after another."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE

from batchgrowth.errors import BatchGrowthError, Interrupted
from batchgrowth.plan import make_plan
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.sinks.events import Event, WorkersReady
from batchgrowth_trainer.training import Options, train

from bench.hosts import ROOT, Hosts


@dataclass(frozen=True, slots=True)
class Trained:
    """One training: its error if it failed, and its times in seconds.

    `accuracies` has each evaluation's accuracy and the time at which the driver received it, counted from the moment
    at which it knew that all workers were ready. `total_seconds` includes the start and the end of the training.
    """

    error: str = ""
    updates: int = 0
    total_seconds: float = 0.0
    accuracies: Sequence[tuple[float, float]] = ()
    weights: str = ""
    recoveries: int = 0

    def reached(self, accuracy: float) -> float | None:
        """Return when an evaluation first found this accuracy; None if none did."""
        return next((seconds for seconds, found in self.accuracies if found >= accuracy), None)


class Driver:
    """The process on the first host; it gives up a job after `longest` seconds."""

    def __init__(self, hosts: Hosts, scheduler: str, longest: float, output: Path) -> None:
        with output.open("wb") as file:
            command = [sys.executable, "-m", __name__, scheduler, str(longest)]
            own = {"PYTHONPATH": str(ROOT)}
            self._process = hosts.hosts[0].start(command, own, stdin=PIPE, stdout=PIPE, stderr=file)
        hosts.owns(self._process)

    def train(self, job: BatchGrowthJob, kept: Path | None = None) -> Trained:
        """Train this job, and leave its files in the folder `kept`/run if given.

        Raises BatchGrowthError if the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        document = job.model_dump(mode="json", by_alias=True, exclude_none=True)
        order = {"job": document, "kept": str(kept or "")}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BatchGrowthError(f"the driver has ended with exit code {self._process.wait()}")
        return Trained(**json.loads(line))


# --- the process ------------------------------------------------------------------------------------------------------


class _Kept:
    """A sink that keeps what `Trained` needs."""

    def __init__(self, workers: int) -> None:
        self.updates = 0
        self.accuracies: list[tuple[float, float]] = []
        self._workers = workers
        self._ready_at = time.monotonic()

    def handle(self, event: Event) -> None:
        match event:
            case WorkersReady(count) if count == self._workers and not self.updates:
                self._ready_at = time.monotonic()
            case HistoryRow():
                self.updates = event.update
            case EvaluationRow():
                self.accuracies.append((time.monotonic() - self._ready_at, event.metrics["accuracy"]))


def _train(job: BatchGrowthJob, kept_in: str, scheduler: str, longest: float) -> Trained:
    began = time.monotonic()
    kept = _Kept(make_plan(job.spec).stages[0].workers)
    with tempfile.TemporaryDirectory(prefix="batchgrowth-bench-") as folder:
        options = Options(
            output_dir=Path(kept_in or folder) / "run",
            scheduler=scheduler,
            desired_workers=lambda plan, position: plan.stage_at(position.update).workers,
            paths=(str(ROOT),),
        )
        try:
            summary = train(job, options, [kept], lambda: time.monotonic() > began + longest)
        except Interrupted:
            return Trained(error=f"not finished after {longest:.0f} s", updates=kept.updates)
        except BatchGrowthError as error:
            return Trained(error=str(error), updates=kept.updates)
    return Trained(
        updates=kept.updates,
        total_seconds=time.monotonic() - began,
        accuracies=kept.accuracies,
        weights=summary["weightsSha256"],
        recoveries=summary["recoveries"],
    )


def main(scheduler: str, longest: float) -> None:
    """Train each job of standard input, and write a line about it, until standard input is closed."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no answer
    for line in sys.stdin:
        order = json.loads(line)
        trained = _train(BatchGrowthJob.model_validate(order["job"]), order["kept"], scheduler, longest)
        print(json.dumps(asdict(trained)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
