"""One SHA-256 for a whole life: one to four workers, a batch that grows, a kill, an interruption, other workers.

Each feature of jobs is in one of them, as many together as one job can have.
"""

import os
import random
import signal
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.choices import EXCHANGES, INEXACT
from batchgrowth.errors import Interrupted
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import Plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.record.runs import read_run
from batchgrowth_trainer.sinks.events import Event
from batchgrowth_trainer.training import Options, train
from dask_workers import workers
from example_jobs import EXAMPLE_JOBS

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"
USER_CODE = str(Path(__file__).parent / "user_code")

GROWING = "growth: {type: Geometric, geometric: {factor: '1.5', everyEpochs: 1}}"
FEW = ("epochs=5", f"batch={{initial: 24, maximum: 96, shard: 8, {GROWING}}}")
MORE = ("epochs=5", f"batch={{initial: 64, maximum: 256, shard: 16, {GROWING}}}")
MLP = (*MORE, "workload.entrypoint=batchgrowth_trainer.workloads.digits:mlp")
# Ends after the fifth epoch of seven: no loss improves by 9.
BEST_AND_EARLY = (
    "evaluation={keepBest: {metric: accuracy, mode: Maximize}, "
    "stopEarly: {metric: loss, mode: Minimize, patience: 4, minimumChange: '9'}}",
    "epochs=7",
)
OWN_JOBS = {
    # A frozen bfloat16 net, dictionaries that are drawn and padded, a step of one's own, F1 of two test sets.
    "an adapter, Adagrad, clipped by value, no decay by name": (
        *FEW,
        "workload={entrypoint: 'adapter:workload', examples: 240}",
        "optimizer={type: Adagrad, adagrad: {weightDecay: '0.1'}, clipping: {value: '0.01'}, "
        "withoutDecay: {names: [head.bias]}}",
    ),
    "dask arrays and columns, RMSprop": (
        *FEW,
        "workload={entrypoint: 'chunked:workload', examples: 240}",
        "optimizer={type: RMSprop, rmsprop: {momentum: '0.5', centered: true}}",
        "learningRate.initial=0.002",
    ),
    "batch norm, LARS, averaged, the best and an early end": (
        *MORE,
        *BEST_AND_EARLY,
        "optimizer={type: LARS, lars: {}, withoutDecay: {belowDimensions: 2}, averaging: {decay: '0.9'}}",
        "learningRate.initial=1",
    ),
    "LAMB": (*MLP, "optimizer={type: LAMB, lamb: {}}", "learningRate.initial=0.01"),
    "buckets, clipped by norm, no decay below two dimensions": (
        *MORE,
        "workload.entrypoint=wide:workload",
        "optimizer={type: AdamW, adamW: {}, clipping: {norm: '1'}, withoutDecay: {belowDimensions: 2}}",
        "learningRate.initial=0.001",
    ),
    "L-BFGS": (*MLP, "optimizer={type: LBFGS, lbfgs: {history: 3}}", "learningRate.initial=0.2"),
    "torch's NAdam": (
        *MLP,
        "optimizer={type: Torch, torch: {optimizer: 'torch.optim:NAdam', arguments: {weight_decay: '0.01'}}}",
        "learningRate.initial=0.002",
    ),
}
LIVES = (*EXAMPLE_JOBS, *OWN_JOBS)
EXACT = [name for name, entry in EXCHANGES.items() if entry.uses_workers and name not in INEXACT]
BACKUPS = "exchange={type: GatherScatter, gatherScatter: {backups: true}}"
LOADERS = [(3, 0), (0, 1), (1, 3)]
"""The loaders of each worker before the interruption, and after it."""


def combinations() -> Iterator[Any]:
    """Each life with each exchange and numbers of loaders; `make test-all` has one of each life, and all parameters."""
    for number, name in enumerate(LIVES):
        shown = EXACT[number % len(EXACT)], LOADERS[number // len(EXACT) % len(LOADERS)]
        for exchange, loaders in product(EXACT, LOADERS):
            marks = () if (exchange, loaders) == shown else pytest.mark.long
            label = f"{name}-{exchange}-{loaders[0]} then {loaders[1]} loaders"
            yield pytest.param(name, exchange, loaders, marks=marks, id=label)


class Fate:
    """A sink that kills one of four workers after their first epoch, and requests a stop once fewer have trained.

    Those are three, or two if the killed one was among the three that the fourth epoch has.
    """

    def __init__(self) -> None:
        self.sizes: set[int] = set()
        self.has_killed = self.stops = False

    def handle(self, event: Event) -> None:
        if isinstance(event, HistoryRow):
            self.sizes.add(event.workers)
            self.stops |= self.has_killed and event.workers < 4
        if isinstance(event, EvaluationRow) and event.epoch == 2 and not self.has_killed:
            os.kill(random.Random(1).choice(workers()).pid, signal.SIGKILL)
            self.has_killed = True


def by_epoch(*counts: int) -> Callable[[Plan, Position], int]:
    return lambda _plan, position: counts[min(position.epoch, len(counts) - 1)]


def told(folder: Path) -> dict[str, Any]:
    """What a finished run has to say that its workers may not change."""
    run = read_run(folder)
    assert run.summary is not None
    return {key: run.summary.get(key) for key in ("updates", "weightsSha256", "best", "stoppedEarly")} | {
        "history": [row.update for row in run.history],
        "evaluations": [(row.update, row.loss, row.metrics) for row in run.evaluations],
    }


@pytest.fixture(scope="module")
def job_of(example_data: Path) -> Callable[..., BatchGrowthJob]:
    """A function: the job of that name with `path=value` overrides."""

    def job(name: str, *overrides: str) -> BatchGrowthJob:
        if name in OWN_JOBS:
            return load_manifest(DIGITS, [*OWN_JOBS[name], *overrides])
        example = EXAMPLE_JOBS[name]
        return example.job(example_data, *example.few, *overrides)

    return job


@pytest.fixture(scope="module")
def alone(job_of: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """A function: what one process without loaders has to say."""
    known: dict[str, dict[str, Any]] = {}

    def one_process(name: str) -> dict[str, Any]:
        if name not in known:
            folder = tmp_path_factory.mktemp("alone")
            train(job_of(name, "exchange.type=SingleProcess", "workers.loaders=0"), Options(output_dir=folder))
            known[name] = told(folder)
        return known[name]

    return one_process


@pytest.mark.fault("C01", "C23")
@pytest.mark.parametrize(("name", "exchange", "loaders"), list(combinations()))
def test_a_life(
    name: str, exchange: str, loaders: tuple[int, int], job_of: Any, alone: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One worker, four, a kill, fewer, a stop; a resume with two workers and other loaders ends as one process does.

    With GatherScatter, idle workers repeat the parts of those that are late.
    """
    chosen = BACKUPS if exchange == "GatherScatter" else f"exchange.type={exchange}"
    code = USER_CODE if name in OWN_JOBS else str(EXAMPLE_JOBS[name].folder)
    monkeypatch.syspath_prepend(code)
    before, after = (
        job_of(name, chosen, f"workers={{waitSeconds: 240, maximum: 4, loaders: {number}}}") for number in loaders
    )
    folder = interrupted(before, (code,), tmp_path / "run")
    train(after, Options(output_dir=folder, paths=(code,), desired_workers=by_epoch(2), resume=True))
    assert alone(name) == told(folder)


def interrupted(job: BatchGrowthJob, paths: tuple[str, ...], folder: Path) -> Path:
    """The folder of a run after its fate, which comes before the last epoch, however late the kill is noticed."""
    fate = Fate()
    with pytest.raises(Interrupted):
        train(
            job,
            Options(output_dir=folder, paths=paths, desired_workers=by_epoch(1, 4, 4, 3, 2)),
            [fate],
            lambda: fate.stops,
        )
    assert {1, 4} < fate.sizes
    return folder
