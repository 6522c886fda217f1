"""Times the shards of a job on this machine, with the loop of a run, to forecast what the whole will take."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from batchgrowth.forecast.step_time import Constants
from batchgrowth.plan import Plan, Step
from batchgrowth.shards import shard_runs
from batchgrowth.spec import BatchGrowthJob

from batchgrowth_trainer.building import begin, build_replica
from batchgrowth_trainer.forecasting.fitting import Cell, constants_of
from batchgrowth_trainer.replica.replica import Replica

BUDGET_SECONDS = 20.0
"""The time for all measurements; with its start, a command takes about 30 s."""
FEWEST_TIMES = 3
MOST_TIMES = 200
MOST_KINDS = 6
"""The most kinds of updates that are timed."""


class Timed(NamedTuple):
    """The constants of a job on this machine, and the bytes of its gradient."""

    constants: Constants
    gradient_bytes: int


def measured(job: BatchGrowthJob, folders: Iterable[Path], clock: Callable[[], float] = time.perf_counter) -> Timed:
    """Return the constants of computing on this machine, without an exchange, and the bytes of the job's gradient.

    Each stage's update is timed as its busiest worker has it: its shards of the batch, without the optimizer's step.
    The user's modules are looked for in `folders` first, as in a run. Raises WorkloadError or DataError.
    """
    begin(job.spec, map(str, folders))
    replica = build_replica(job.spec)
    with closing(replica.reader):
        size = replica.parameters.vector.numel() * replica.parameters.vector.element_size()
        kinds = kinds_of(replica.plan)
        cells: list[Cell] = []
        for step, run in kinds:
            cells += timed(replica, step, run, BUDGET_SECONDS / len(kinds), clock)
    lone_exchange = job.spec.exchange.entry.lone_exchange
    constants = constants_of(cells, 0.0, "timed on this machine", lone_exchange=lone_exchange)
    note = "the exchange is a guess; --network gives that of your network"
    return Timed(replace(constants, label="measured", notes=(), exchange_note=note), size)


def kinds_of(plan: Plan) -> list[tuple[Step, tuple[int, int]]]:
    """Return an update of each stage with the run of shards of its busiest worker; of a long plan, of some stages."""
    stages = plan.stages
    if len(stages) > MOST_KINDS:
        stages = tuple(stages[round(place * (len(stages) - 1) / (MOST_KINDS - 1))] for place in range(MOST_KINDS))
    kinds = []
    for stage in stages:
        step = plan.step_at(plan.position_at(stage.first_update))
        runs = shard_runs(step.shards, min(stage.workers, step.shards))
        kinds.append((step, max(runs, key=lambda run: run[1] - run[0])))
    return kinds


def timed(
    replica: Replica, step: Step, run: tuple[int, int], seconds: float, clock: Callable[[], float]
) -> Sequence[Cell]:
    """Return the times of one kind of update, which is repeated for about `seconds`; the first one does not count."""
    begin_, end = run
    examples = -(-step.examples * (end - begin_) // step.shards)
    cells = []
    started = clock()
    for number in range(MOST_TIMES + 1):
        began = clock()
        partials = replica.partials(step, run)
        replica.rows.release(partials)
        now = clock()
        # The first loads kernels and fills caches.
        if number:
            cells.append(Cell(examples=examples, shards=end - begin_, workers=1, seconds=now - began))
        if number >= FEWEST_TIMES and now - started > seconds:
            break
    return cells
