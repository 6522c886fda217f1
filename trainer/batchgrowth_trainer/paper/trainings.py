"""The five schedules of the paper trained for real: on the digits, scaled down, or on CIFAR-10 as they are.

Each run keeps its folder, so an interrupted command goes on where it stopped, and a later figure trains nothing again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from pathlib import Path
from statistics import mean, stdev

from batchgrowth.errors import DataError
from batchgrowth.plan import Plan, make_plan
from batchgrowth.spec import BatchGrowthJob
from scipy.stats import studentized_range

from batchgrowth_trainer.api import process_as_it_was
from batchgrowth_trainer.paper.published import EXAMPLES_PER_WORKER, SCHEDULES, PublishedSchedule
from batchgrowth_trainer.record.history import EvaluationRow
from batchgrowth_trainer.record.runs import read_run
from batchgrowth_trainer.sinks.events import Event, Note
from batchgrowth_trainer.stopping import stoppable
from batchgrowth_trainer.training import Options, train
from batchgrowth_trainer.workloads.cifar10 import TEST_FILES, TRAIN_FILES, WHERE

DEFAULT_SEEDS = 10
DEFAULT_DATA = Path("data/cifar-10-batches-bin")
METRIC = "accuracy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProblem:
    """What the schedules are trained on, and how the paper's numbers are scaled to it.

    The paper's batches are divided by `divisor`, and the batch grows every `every_epochs` of `epochs`.
    """

    label: str
    entrypoint: str
    arguments: Mapping[str, str]
    examples: int
    divisor: int
    every_epochs: int
    epochs: int

    def job(self, schedule: PublishedSchedule, seed: int) -> BatchGrowthJob:
        """Return the manifest of a schedule on this problem, trained by one process.

        More workers would make the same weights.
        """
        document = schedule.job().model_dump(mode="json", by_alias=True, exclude_none=True)
        spec = document["spec"]
        spec["workload"] |= {
            "entrypoint": self.entrypoint,
            "arguments": dict(self.arguments),
            "examples": self.examples,
        }
        spec["batch"] |= {"initial": schedule.initial // self.divisor, "maximum": schedule.maximum // self.divisor}
        spec["batch"]["growth"]["geometric"]["everyEpochs"] = self.every_epochs
        spec["workers"]["examplesPerWorker"] = EXAMPLES_PER_WORKER // self.divisor
        spec |= {"seed": seed, "epochs": self.epochs, "exchange": {"type": "SingleProcess"}}
        return BatchGrowthJob.model_validate(document)

    def plan(self, schedule: PublishedSchedule) -> Plan:
        """Return the plan of a schedule on this problem."""
        return make_plan(self.job(schedule, 0).spec)


def digits() -> TrainingProblem:
    """Return the digits, with a sixteenth of the paper's batches and a tenth of its epochs."""
    return TrainingProblem(
        label="digits",
        entrypoint="batchgrowth_trainer.workloads.digits:mlp",
        arguments={},
        examples=1437,
        divisor=16,
        every_epochs=6,
        epochs=20,
    )


def cifar10(data: Path = DEFAULT_DATA) -> TrainingProblem:
    """Return the paper's own problem, CIFAR-10 with WRN 16-4. Raises DataError if the images are not in the folder."""
    missing = [name for name in (*TRAIN_FILES, *TEST_FILES) if not (data / name).is_file()]
    if missing:
        raise DataError(
            f"{data}: there is no {missing[0]}; {WHERE}, then give its folder with --data, or train on the digits, "
            f"which need no download: --workload digits"
        )
    return TrainingProblem(
        label="CIFAR-10, WRN 16-4",
        entrypoint="batchgrowth_trainer.workloads.cifar10_wrn:workload",
        arguments={"data": str(data.resolve())},
        examples=50_000,
        divisor=1,
        every_epochs=60,
        epochs=200,
    )


def problem_of(workload: str, data: Path | None) -> TrainingProblem:
    """Return the problem of a name; `data` is the folder of CIFAR-10's images. Raises DataError if they are missing."""
    if workload == "cifar10":
        return cifar10(data or DEFAULT_DATA)
    return digits()


@dataclass(frozen=True, slots=True)
class SeedMean:
    """The mean over seeds, and its standard error; NaN for a single seed."""

    mean: float
    error: float


def seed_mean(values: Sequence[float]) -> SeedMean:
    """Return the mean of one value per seed, with its standard error."""
    if len(values) == 1:
        return SeedMean(values[0], nan)
    return SeedMean(mean(values), stdev(values) / sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class TrainedSchedule:
    """The evaluations of a schedule's runs, one sequence for each seed, all at the same updates."""

    schedule: PublishedSchedule
    plan: Plan
    runs: tuple[tuple[EvaluationRow, ...], ...]

    @property
    def epochs(self) -> list[float]:
        """Return the epochs of the evaluations."""
        return [row.epoch for row in self.runs[0]]

    @property
    def updates(self) -> list[int]:
        """Return the updates that were done at the evaluations."""
        return [row.update for row in self.runs[0]]

    def across(self, value: Callable[[EvaluationRow], float]) -> list[SeedMean]:
        """Return the mean over seeds of a value at each evaluation."""
        return [seed_mean([value(row) for row in rows]) for rows in zip(*self.runs, strict=True)]

    @property
    def accuracy(self) -> list[SeedMean]:
        """Return the test accuracy in percent at each evaluation."""
        return self.across(lambda row: 100 * row.metrics[METRIC])

    @property
    def loss(self) -> list[SeedMean]:
        """Return the test loss at each evaluation."""
        return self.across(lambda row: row.loss)

    @property
    def seconds(self) -> list[SeedMean]:
        """Return the seconds since the start of the run at each evaluation."""
        return self.across(lambda row: row.seconds)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The five schedules, trained on the same problem with the same seeds."""

    problem: TrainingProblem
    seeds: int
    schedules: tuple[TrainedSchedule, ...]

    def likeness(self) -> str:
        """Say how far apart the final accuracies are, in standard errors, and how often chance alone does that."""
        ends = {one.schedule.name: one.accuracy[-1] for one in self.schedules}
        best = max(ends, key=lambda name: ends[name].mean)
        worst = min(ends, key=lambda name: ends[name].mean)
        apart = ends[best].mean - ends[worst].mean
        epochs = self.problem.epochs
        text = f"After {epochs} epochs the best and the worst, {best} and {worst}, are {apart:.2f} points apart"
        if self.seeds == 1:
            return f"{text}; one seed gives no standard error."
        error = sqrt(mean(one.error**2 for one in ends.values()))
        if not error:
            return f"{text}, and all seeds agree."
        ratio = apart / error
        within = "within" if ratio <= 1 else "not within"
        # Tukey's range test: how often the means of so many equal schedules lie as far apart.
        chance = studentized_range.sf(ratio, len(ends), len(ends) * (self.seeds - 1))
        return (
            f"{text}, {ratio:.1f} standard errors of a mean, so {within} one. If all five were equally good, their "
            f"means would be as far apart in {chance:.0%} of such experiments."
        )


class _SaidNotes:
    """A sink that passes a run's notes to `say`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def handle(self, event: Event) -> None:
        """Say the note, if the event is one."""
        if isinstance(event, Note):
            self._say(event.text)


def trained(problem: TrainingProblem, seeds: int, folder: Path, say: Callable[[str], None]) -> Comparison:
    """Train each schedule with each of the seeds 0, 1, …, or read what an earlier call has trained.

    Schedules take turns, so that a machine that changes its speed changes it for all of them. A run is in the
    folder's MAXIMUM-seed-SEED. Raises Interrupted at a signal, and what training and reading a run raise.
    """
    found: dict[str, list[tuple[EvaluationRow, ...]]] = {schedule.name: [] for schedule in SCHEDULES}
    for seed in range(seeds):
        for schedule in SCHEDULES:
            place = folder / f"{schedule.maximum}-seed-{seed}"
            with (
                process_as_it_was(),
                stoppable("stopping after this update; the same command goes on", _SaidNotes(say)) as stop,
            ):
                train(problem.job(schedule, seed), Options(output_dir=place, resume=True), (), stop)
            # From the folder, since a run that an earlier call has finished was not trained now.
            rows = read_run(place).evaluations
            found[schedule.name].append(rows)
            last = rows[-1]
            say(
                f"{schedule.name}, seed {seed}: {last.update:,} updates in {last.seconds:.1f} s, "
                f"accuracy {100 * last.metrics[METRIC]:.2f} %"
            )
    return Comparison(
        problem,
        seeds,
        tuple(TrainedSchedule(one, problem.plan(one), tuple(found[one.name])) for one in SCHEDULES),
    )
