"""Interleaved rounds: each runs every system of a case, so that a slow machine slows all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batchgrowth.plan import make_plan
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.record.history import HistoryRow

from bench import dask_tasks, ours
from bench.baselines import Peers, Sample, sample_of
from bench.cases import TASKS, WORKERS, Case, System
from bench.tables import Spread, percentile, spread, turned

Report = Callable[[str], None]


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
    batch: int
    updates: int
    warm: int
    rounds: int
    figures: list[Figures]
    workers: int = WORKERS
    repeats: int = 1


def measure_cases(chosen: list[Case], rounds: int, report: Report, names: Sequence[str] = ()) -> list[Measured]:
    """Return the figures of the chosen cases, each on a cluster with its workers, which may speak TLS.

    `names` are those of the systems to compare; see Case.compared.
    """
    found = []
    for workers, tls in ((WORKERS, False), (WORKERS, True), (1, False)):
        some = [case for case in chosen if (case.workers, case.tls) == (workers, tls)]
        if some:
            with Peers(some[0].job().spec) as peers, ours.workers_ready(workers, tls=tls) as scheduler:
                found += [_measure(case, rounds, report, names, peers, scheduler) for case in some]
    return found


def _measure(case: Case, rounds: int, report: Report, names: Sequence[str], peers: Peers, scheduler: str) -> Measured:
    def run(system: System) -> Sample:
        """Run a system once. The bytes of ours include joining and leaving the cluster."""
        if system.name == TASKS:
            return dask_tasks.measure(case.job(), scheduler, case.warm)
        if not system.exchange:
            return peers.measure(system.name, case.job().spec, case.warm)
        rows, sent = _measured(case.job(system), system, case.workers, scheduler)
        # From the commit of the last update of the warm-up to the last one, by the reporter's clock.
        return sample_of([row.seconds for row in rows[case.warm - 1 :]], sent)

    systems = case.compared(names)
    samples: dict[str, list[Sample]] = {system.name: [] for system in systems}
    for number in range(rounds):
        runs: dict[str, list[Sample]] = {system.name: [] for system in systems}
        for repeat in range(case.repeats):
            for system in turned(systems, number * case.repeats + repeat):
                runs[system.name].append(run(system))
        for name, found in runs.items():
            sample = of_round(found)
            samples[name].append(sample)
            report(f"{case.name}, round {number + 1} of {rounds}: {name} {sample.ms:.2f} ms per update")

    first = samples[systems[0].name]
    figures = []
    for system in systems:
        mine = samples[system.name]
        ratios = spread([one.ms / other.ms for one, other in zip(mine, first, strict=True)])
        sent = _sent(case, system, mine, scheduler)
        figures.append(Figures(system.name, system.shard, spread([one.ms for one in mine]), ratios, sent))
    updates = make_plan(case.job().spec).updates
    return Measured(case.name, case.batch, updates, case.warm, rounds, figures, case.workers, case.repeats)


def _measured(job: BatchGrowthJob, system: System, workers: int, scheduler: str) -> tuple[list[HistoryRow], int]:
    """Return what ours.measure does, on the workers of the case or on new ones, as the system has it.

    Workers that have just started are slower than those that have trained before, so both sides of a comparison must be
    of one kind.
    """
    if not system.own_cluster:
        return ours.measure(job, scheduler)
    if system.guarded:
        return ours.measure(job, None)
    with ours.workers_ready(workers) as without_certificate:
        return ours.measure(job, without_certificate)


def _sent(case: Case, system: System, samples: list[Sample], scheduler: str) -> float:
    """Return the bytes per update of the smallest sample: other traffic and what TCP sends again only add to it."""
    if case.workers == 1:
        return 0.0
    least = min(sample.sent for sample in samples)
    if not system.exchange:
        return least
    # A run of the warm-up alone is subtracted from ours, which leaves the bytes of the timed updates.
    warm_up = case.job(system, only_warm=True)
    short = min(_measured(warm_up, system, case.workers, scheduler)[1] for _ in range(min(len(samples), 2)))
    return (least - short) / (make_plan(case.job().spec).updates - case.warm)


def of_round(runs: list[Sample]) -> Sample:
    """Return one system's sample of a round.

    Of several runs it has the lower quartile of the times of their blocks, which other load that comes and goes in
    seconds does not move, and the least bytes.
    """
    if len(runs) == 1:
        return runs[0]
    blocks = [ms for run in runs for ms in run.blocks]
    return Sample(percentile(blocks, 25), min(run.sent for run in runs))
