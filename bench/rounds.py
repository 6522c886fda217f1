"""Interleaved rounds: each runs every system once, so that a slow machine slows all of them.

The order rotates from round to round, and every second round has it backwards, so that no system always follows
another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np
from batchgrowth.schedule.plan import make_plan

from bench import dask_tasks, epoch_ends, ours, pauses
from bench.baselines import Sample
from bench.cases import Case
from bench.epoch_ends import EpochEnds
from bench.ours import workers_ready
from bench.pauses import Pauses
from bench.peers import Peers
from bench.systems import ENCRYPTED, TASKS, WORKERS, System

T = TypeVar("T")
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Spread:
    """The minimum, median and maximum of some numbers."""

    least: float
    middle: float
    most: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One system in one case over all rounds; `ratio` is to the case's first system in the same round."""

    system: str
    shard: int
    ms: Spread
    ratio: Spread
    sent: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One case: its settings, and the figures of each system."""

    case: str
    model: str
    batch: int
    updates: int
    warm: int
    rounds: int
    why_shard: str
    figures: list[Figures]
    workers: int = WORKERS
    repeats: int = 1


def turned(things: Sequence[T], number: int) -> list[T]:
    """The order of these in round `number`, from 0: rotated by one from round to round, every second one backwards."""
    turn = number % max(1, len(things))
    order = [*things[turn:], *things[:turn]]
    return order[::-1] if number % 2 else order


def spread(numbers: list[float]) -> Spread:
    """Their minimum, median and maximum."""
    return Spread(min(numbers), median(numbers), max(numbers))


def measure_cases(chosen: list[Case], rounds: int, report: Report, names: Sequence[str] = ()) -> list[Measured]:
    """The figures of the chosen cases, each on a cluster with its workers; that of ENCRYPTED speaks TLS.

    `names` are those of the systems to compare; see Case.compared.
    """
    found = []
    for workers, tls in ((WORKERS, False), (WORKERS, True), (1, False)):
        if cases := [case for case in chosen if (case.workers, case.of == ENCRYPTED) == (workers, tls)]:
            with Peers(cases[0].job().spec) as peers, workers_ready(workers, tls=tls) as scheduler:
                found += [_measure_case(_Stand(case, peers, scheduler), rounds, report, names) for case in cases]
    return found


def measure_epoch_ends(cases: list[Case], report: Report) -> list[EpochEnds]:
    """What the ends of epochs cost in each case, on a cluster with one worker."""
    found = []
    with workers_ready(1) as scheduler:
        for case in cases:
            report(f"epoch ends: {case.model}-{case.batch}")
            found.append(epoch_ends.measure(case, scheduler))
    return found


def measure_pauses(resizes: int, report: Report) -> list[Pauses]:
    """The pauses of every pattern, each on a cluster with exactly the workers that it needs."""
    found = []
    for pattern in pauses.PATTERNS:
        report(f"pauses: {pattern.name}, {resizes} resizes")
        with workers_ready(pattern.most) as scheduler:
            found.append(pauses.measure(pattern, scheduler, resizes))
    return found


@dataclass(frozen=True, slots=True)
class _Stand:
    """The processes and the cluster that the systems of a case run on."""

    case: Case
    peers: Peers
    scheduler: str

    def measure(self, system: System) -> Sample:
        """One run of one system. The bytes of ours include joining and leaving the cluster."""
        if system.name == TASKS:
            return dask_tasks.measure(self.case.job(), self.scheduler, self.case.warm)
        if not system.exchange:
            return self.peers.measure(system.name, self.case.job().spec, self.case.warm)
        trained = ours.measure(self.case.job(system), self.scheduler)
        return trained.rows.sample(self.case.warm, trained.sent)

    def sent(self, system: System, samples: list[Sample]) -> float:
        """Bytes per update, from the smallest sample, since other traffic can only add to it; 0 for a single worker.

        The bytes of a run of only the warm-up are subtracted from ours, which leaves those of the timed updates.
        """
        if self.case.workers == 1:
            return 0.0
        least = min(sample.sent for sample in samples)
        if not system.exchange:
            return least
        job, times = self.case.job(system, only_warm=True), min(len(samples), 2)
        short = min(ours.measure(job, self.scheduler).sent for _ in range(times))
        return (least - short) / (make_plan(self.case.job().spec).updates - self.case.warm)


def _measure_case(stand: _Stand, rounds: int, report: Report, names: Sequence[str]) -> Measured:
    case, systems = stand.case, stand.case.compared(names)
    samples: dict[str, list[Sample]] = {system.name: [] for system in systems}
    for number in range(rounds):
        runs: dict[str, list[Sample]] = {system.name: [] for system in systems}
        for repeat in range(case.repeats):
            for system in turned(systems, number * case.repeats + repeat):
                runs[system.name].append(stand.measure(system))
        for name, found in runs.items():
            samples[name].append(of_round(found))
            report(f"{case.name}, round {number + 1} of {rounds}: {name} {samples[name][-1].ms:.2f} ms per update")
    figures = [
        Figures(
            system.name,
            system.shard,
            spread([sample.ms for sample in samples[system.name]]),
            _ratio(samples[system.name], samples[systems[0].name]),
            stand.sent(system, samples[system.name]),
        )
        for system in systems
    ]
    updates = make_plan(case.job().spec).updates
    return Measured(
        case.name, case.model, case.batch, updates, case.warm, rounds, case.why_shard, figures, case.workers,
        case.repeats,
    )  # fmt: skip


def of_round(runs: list[Sample]) -> Sample:
    """One system's sample of a round. Of several runs it has the lower quartile of the times of their blocks, which
    other load that comes and goes in seconds does not move, and the least bytes.
    """
    if len(runs) == 1:
        return runs[0]
    blocks = [ms for run in runs for ms in run.blocks]
    return Sample(float(np.percentile(blocks, 25)), min(run.sent for run in runs))


def _ratio(some: list[Sample], others: list[Sample]) -> Spread:
    """How much longer an update takes, round by round."""
    return spread([mine.ms / other.ms for mine, other in zip(some, others, strict=True)])
