"""Fits the constants of a step time to recorded updates.

An update's time is linear in the constants, none of which is negative, so the fit is by non-negative least squares of
relative errors. The history has the time of each update without the time between updates; AdaptDL's model of a step
(Qiao et al. 2021, section 3.2) fits the same time with seven constants.

If several workers trained, the computing time in each row of the history is fitted as well, to the constants of
computing alone; so the fit knows which part of an update the exchange takes, even if the number of workers never
changed.

A weak prior decides between constants that the updates do not tell apart: its expectation gives the forecast, and fits
with other draws of it, and of the noise, give the interval. A constant that no update shows thereby stays at its prior,
and the interval says how little is known.

`nonnegative` solves this for a few unknowns. scipy.optimize.nnls finds the same solution, but importing it takes a
second of CPU time: as long as everything else that `batchgrowth forecast --fit` does, and for the remaining time of a
run, that second is taken from the training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from batchgrowth.errors import Fault, SpecError
from batchgrowth.forecast.step_time import Constants, StepTime
from batchgrowth.plan import Plan
from batchgrowth.shards import busiest, shard_count, shard_runs
from batchgrowth.spec import BatchGrowthJob, JobSpec

from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.record.runs import read_run, recorded_course, recorded_job

Numbers = npt.NDArray[np.float64]

# --- Least squares without negative unknowns ---

TOLERANCE = 1e-10
"""The share of the largest moment up to which a slope counts as 0."""


def nonnegative(gram: Numbers, moments: Numbers) -> Numbers:
    """Return the x ≥ 0 with the least |A x - b|², where gram = AᵀA, shape (N, N), and moments = Aᵀb, shape (N,).

    The columns of A must be independent. By the active sets of Lawson and Hanson (1974), chapter 23.
    """
    sizes = np.sqrt(np.diag(gram))
    gram = gram / np.outer(sizes, sizes)
    moments = moments / sizes
    least = TOLERANCE * float(np.max(np.abs(moments)))
    found = np.zeros(len(moments))
    free: list[int] = []
    for _ in range(3 * len(moments)):  # rounding could let a column come and go for ever
        slopes = moments - gram @ found
        rising = [place for place in range(len(moments)) if place not in free and slopes[place] > least]
        if not rising:
            break
        free.append(max(rising, key=lambda place: float(slopes[place])))
        while True:
            wished = np.zeros(len(moments))
            wished[free] = np.linalg.solve(gram[np.ix_(free, free)], moments[free])
            negative = [place for place in free if wished[place] <= 0]
            if not negative:
                found = wished
                break
            # Go towards the wish until the first unknown reaches 0, and hold that one there.
            shares = {place: found[place] / max(found[place] - wished[place], 1e-300) for place in negative}
            first = min(shares, key=lambda place: shares[place])
            found = found + shares[first] * (wished - found)
            found[first] = 0.0
            free.remove(first)
    return np.asarray(found / sizes)


# --- The fit ---

COLUMNS = ("per_update", "per_shard", "per_example", "per_group", "per_doubling", "per_worker")
"""The constants that are fitted, in the order of the columns."""
FIRST_OF_EXCHANGE = COLUMNS.index("per_group")
PRIOR_SHARES = (0.25, 0.1, 0.65, 0.02, 0.05, 0.005)
"""The share of an update that each constant takes before anything is known, the exchange's with two workers."""
LARGEST_SHARES = (1.0, 0.5, 1.0, 0.3, 1.0, 0.3)
"""Each draw of the prior is uniform between 0 and this share."""
PRIOR_DEVIATION = 0.5
"""The standard deviation of the prior, as a share of an update: 25 times a noisy run's deviation between blocks."""
BLOCKS = 24
"""Number of parts of a run whose mean times are compared; a machine's pace drifts from part to part."""
NUM_DRAWS = 60
WARM_UPDATES = 3
"""The first updates of a run, which load kernels and fill caches, and are left out if there are ten times as many."""
SMALLEST_NOISE = 0.005
SMALLEST_ERROR = 0.04
"""The least relative error of a forecast: runs of the same job on the same machine differ as much."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The mean seconds of like updates within a part of a run, and the part of them that was computing, if known.

    The computing time is the first worker's, whose process makes the rows. With a `lone_exchange`, the driver makes
    them with the shortest computing time of all workers; then an update of a single worker has an exchange in it, too.
    """

    examples: int
    shards: int
    workers: int
    seconds: float
    compute_seconds: float | None = None
    lone_exchange: bool = False

    @property
    def exchanges(self) -> bool:
        """Return whether a part of the time is an exchange."""
        return self.workers > 1 or self.lone_exchange

    @property
    def columns(self) -> list[float]:
        """Return the factor of each constant in `seconds`, in the order of COLUMNS."""
        return [
            1.0,
            float(-(-self.shards // self.workers)),
            busiest(self.examples, self.shards, self.workers),
            float(self.exchanges),
            float(np.log2(self.workers)),
            self.workers - 1.0,
        ]

    @property
    def shows_computing(self) -> bool:
        """Return whether the computing time is known, and differs from the whole because of an exchange."""
        return self.exchanges and bool(self.compute_seconds)

    @property
    def computing_columns(self) -> list[float]:
        """Return the factor of each constant in `compute_seconds`, in the order of COLUMNS."""
        runs = [hi - lo for lo, hi in shard_runs(self.shards, self.workers)]
        computed = min(runs) if self.lone_exchange else runs[0]
        return [1.0, float(computed), self.examples * computed / self.shards, 0.0, 0.0, 0.0]


def fitted(folders: Sequence[Path], job: BatchGrowthJob) -> Constants:
    """Return the constants that fit the runs in these folders, for a forecast of `job`.

    Raises DataError if a folder holds no run or no update, SpecError if a run trained another workload.
    """
    cells: list[Cell] = []
    epochs: list[float] = []
    for folder in folders:
        recorded = recorded_job(folder)
        check_same_work(folder, recorded.spec, job.spec)
        rows = read_run(folder).history
        plan = recorded_course(folder).plan
        cells += cells_of(rows, plan, lone_exchange=job.spec.exchange.entry.lone_exchange)
        epochs += between_updates(rows)
    source = f"fitted to {', '.join(map(str, folders))}"
    per_epoch = sum(epochs) / len(epochs) if epochs else 0.0
    return constants_of(cells, per_epoch, source, lone_exchange=job.spec.exchange.entry.lone_exchange)


def check_same_work(folder: Path, ran: JobSpec, asked: JobSpec) -> None:
    """Raise SpecError if the updates of a run say nothing about those of a job, because they compute something else."""
    pairs = (
        ("workload.entrypoint", ran.workload.entrypoint, asked.workload.entrypoint),
        ("workload.arguments", ran.workload.arguments, asked.workload.arguments),
        ("precision", ran.precision or "the default", asked.precision or "the default"),
        ("exchange.type", ran.exchange.type, asked.exchange.type),
        ("optimizer.type", ran.optimizer.type, asked.optimizer.type),
    )
    faults = [
        Fault(f"--fit {folder}", f"its {name} is {theirs}, and that of the job {ours}", "give a run of the same work")
        for name, theirs, ours in pairs
        if theirs != ours
    ]
    if faults:
        raise SpecError(faults)


def cells_of(rows: Sequence[HistoryRow], plan: Plan, *, lone_exchange: bool = False) -> list[Cell]:
    """Return the mean times of like updates in each of `BLOCKS` parts of a run, which has rows."""
    warm = rows[WARM_UPDATES:] if len(rows) > 10 * WARM_UPDATES else rows
    cells: list[Cell] = []
    for block in np.array_split(np.arange(len(warm)), min(BLOCKS, len(warm))):
        alike: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        for row in (warm[place] for place in block):
            examples = examples_of(row, plan)
            key = (examples, shard_count(examples, plan.shard, plan.replicas), row.workers)
            alike.setdefault(key, []).append((row.update_seconds, row.compute_seconds))
        for key, times in alike.items():
            seconds, compute = np.mean(times, axis=0)
            cells.append(Cell(*key, float(seconds), float(compute), lone_exchange))
    return [cell for cell in cells if cell.seconds > 0]


def examples_of(row: HistoryRow, plan: Plan) -> int:
    """Return the examples of an update; the last one of an epoch may have fewer than the batch."""
    return min(row.batch_size, plan.examples_per_epoch - plan.position_at(row.update - 1).offset)


def between_updates(rows: Sequence[HistoryRow]) -> list[float]:
    """Return a list of the seconds per epoch between updates, such as for evaluations; empty before a whole epoch."""
    epochs = rows[-1].epoch - rows[0].epoch
    if epochs < 1:
        return []
    # Without the first row's update, which was over when that row's seconds were taken.
    updates = sum(row.update_seconds for row in rows[1:])
    return [max(0.0, rows[-1].seconds - rows[0].seconds - updates) / epochs]


def constants_of(
    cells: Sequence[Cell], per_epoch: float, source: str, num_draws: int = NUM_DRAWS, *, lone_exchange: bool = False
) -> Constants:
    """Return the constants that fit the cells, and draws of others that fit about as well.

    With a `lone_exchange`, one worker will exchange, too, though it may not have done so in the cells.
    """
    matrix = np.array([cell.columns for cell in cells])
    seconds = np.array([cell.seconds for cell in cells])
    usual = np.median(seconds)
    scale = scales(cells, seconds)
    reference = np.append(np.mean(matrix[:, :FIRST_OF_EXCHANGE], axis=0), np.ones(len(COLUMNS) - FIRST_OF_EXCHANGE))
    computing = [cell for cell in cells if cell.shows_computing]
    if computing:
        parts = np.array([cell.compute_seconds for cell in computing])
        matrix = np.vstack((matrix, [cell.computing_columns for cell in computing]))
        seconds = np.append(seconds, parts)
        # As a part of a sum of independent times: its deviation falls with the square root of its share.
        wholes = scale[[cell.shows_computing for cell in cells]]
        scale = np.append(scale, np.sqrt(wholes * scales(computing, parts)))
    weights = (reference / usual / PRIOR_DEVIATION) ** 2  # of the prior, whose expectation has this share of an update
    shares = np.array(PRIOR_SHARES) * usual / reference

    noise = SMALLEST_NOISE
    for _ in range(2):  # the second fit weighs the prior against the noise that the first found
        found = _solved(matrix, seconds, noise * scale, weights, shares)
        residuals = (seconds - matrix @ found) / scale
        noise = max(SMALLEST_NOISE, float(np.sqrt(np.mean(residuals**2))))
    # With a fixed seed, the same runs give the same forecast.
    random = np.random.default_rng(0)
    draws = []
    for _ in range(num_draws):
        other = seconds * np.exp(noise * random.standard_normal(len(seconds)))
        shares = random.uniform(0, 1, len(COLUMNS)) * LARGEST_SHARES * usual / reference
        solved = _solved(matrix, other, noise * scale, weights, shares)
        draws.append(_step(solved, per_epoch, lone_exchange=lone_exchange))
    return Constants(
        label="fit",
        step=_step(found, per_epoch, lone_exchange=lone_exchange),
        error=max(SMALLEST_ERROR, noise / np.sqrt(min(len(cells), BLOCKS)) * 2),
        draws=tuple(draws),
        seen_workers=frozenset(cell.workers for cell in cells),
        source=source,
        notes=_notes(cells),
        exchange_note=_exchange_note(cells),
    )


def scales(cells: Sequence[Cell], seconds: Numbers) -> Numbers:
    """Return for each cell the mean of these seconds over all cells like it: errors relative to a single cell would
    favour short times.
    """
    alike: dict[tuple[int, int, int], list[float]] = {}
    keys = [(cell.examples, cell.shards, cell.workers) for cell in cells]
    for key, one in zip(keys, seconds, strict=True):
        alike.setdefault(key, []).append(float(one))
    return np.array([np.mean(alike[key]) for key in keys])


def _solved(matrix: Numbers, seconds: Numbers, deviations: Numbers, weights: Numbers, prior: Numbers) -> Numbers:
    """Return the non-negative constants that fit the measured times best and do not depart far from the prior.

    They minimize the sum of the squared errors, each divided by its deviation, and of the squared differences from the
    prior, each times its weight.
    """
    scaled = matrix / deviations[:, None]
    gram = scaled.T @ scaled + np.diag(weights)
    return nonnegative(gram, scaled.T @ (seconds / deviations) + weights * prior)


def _step(found: Numbers, per_epoch: float, *, lone_exchange: bool) -> StepTime:
    per_update, per_shard, per_example, per_group, per_doubling, per_worker = map(float, found)
    return StepTime(
        per_update=per_update,
        per_shard=per_shard,
        per_example=per_example,
        per_group=per_group,
        per_doubling=per_doubling,
        per_worker=per_worker,
        per_epoch=per_epoch,
        lone_exchange=lone_exchange,
    )


def _notes(cells: Sequence[Cell]) -> tuple[str, ...]:
    sizes = [cell.examples for cell in cells]
    if max(sizes) < 2 * min(sizes):
        return ("all updates had the same batch, so the time of larger ones is a guess; --measure times several",)
    return ()


def _exchange_note(cells: Sequence[Cell]) -> str:
    workers = {cell.workers for cell in cells}
    if workers == {1}:
        return "no run had more than one worker, so the exchange is a guess; --network gives that of your network"
    if len(workers) == 1:
        (number,) = workers
        return f"all updates had {number} workers, so the exchange among others is a guess"
    return ""
