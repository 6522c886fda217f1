"""The trainings that `bench.growth_rules` compares, one for each way in which the batch may grow, and their results."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from batchgrowth.choices import GROWTH
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.position import Position
from batchgrowth.schedule.plan import make_plan
from batchgrowth.schedule.stages import Plan
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.record.runs import decisions_of
from batchgrowth_trainer.training import Options, train

from bench.ours import Rows

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits-measured.yaml"
CONV_NET, TINY_NET = "workload", "mlp"
"""Functions of the digits workload: the example's network, and one to see that everything runs."""
HIDDEN = 16
"""Channels of the first layers of the network; the example has 64, and takes twice as long."""
SMALL, LARGE, SHARD = 32, 512, 16
LOOKS = {"everyUpdates": 10, "mostChange": "4"}
"""With the default looks all rules double the batch at the same epochs of so short a training."""

LEFT_OUT = ("Custom", "Goodput")
"""Measured rules that have no batch of their own here: a user's function, and one that follows the machine's speed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One training: its results, `seconds_per_shard`, its median update over its shards, and its plan in the end.

    `batches` are the epochs at which a stage began, and its batch size. `shards` and `turns` sum over the updates the
    planned workers times the shards of the worker that has most, and those shards alone.
    """

    accuracy: float
    loss: float
    updates: int
    seconds_per_shard: float
    shards: int
    turns: int
    batches: list[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way in which the batch grows, and its trial for each seed."""

    name: str
    trials: list[Trial]

    def mean(self, figure: str) -> float:
        """The mean of that figure over the seeds."""
        return float(mean(getattr(trial, figure) for trial in self.trials))

    def error(self, figure: str) -> float:
        """The standard error of that mean; 0 for a single seed."""
        figures = [getattr(trial, figure) for trial in self.trials]
        return float(stdev(figures)) / len(figures) ** 0.5 if len(figures) > 1 else 0.0


def seconds_per_shard(contestants: list[Contestant]) -> float:
    """The median over all trainings, so that the machine's load does not favour any of them."""
    return float(median(trial.seconds_per_shard for one in contestants for trial in one.trials))


def settings(epochs: int) -> dict[str, dict[str, Any]]:
    """Name of a contestant -> `batch` and `learningRate` of its job."""
    small, rate = {"initial": SMALL, "maximum": LARGE, "shard": SHARD}, {"initial": "0.05", "rule": "Constant"}
    large = {"initial": LARGE, "maximum": LARGE, "shard": SHARD}
    every = {"factor": "2", "everyEpochs": max(1, epochs // 6)}
    measured = [name for name, entry in GROWTH.items() if entry.quantity and name not in LEFT_OUT]
    gaining = {"initial": "0.05", "rule": "AdaScale", "adaScale": {"everyUpdates": LOOKS["everyUpdates"]}}
    cosine = {"initial": "0.05", "rule": "Linear", "schedule": {"type": "Cosine"}}
    return {
        f"constant {SMALL}": {"batch": {**small, "maximum": SMALL}, "learningRate": rate},
        f"constant {LARGE}": {"batch": large, "learningRate": rate},
        f"constant {LARGE}, 4 times the rate": {"batch": large, "learningRate": {**rate, "initial": "0.2"}},
        "Geometric (declared)": {
            "batch": {**small, "growth": {"type": "Geometric", "geometric": every}}, "learningRate": rate,
        },
        "Geometric, AdaScale": {
            "batch": {**small, "growth": {"type": "Geometric", "geometric": every}}, "learningRate": gaining,
        },
        **{
            name: {"batch": {**small, "growth": {"type": name, "looks": LOOKS}}, "learningRate": rate}
            for name in measured
        },
        "NoiseScale, AdaScale": {
            "batch": {**small, "growth": {"type": "NoiseScale", "looks": LOOKS}}, "learningRate": gaining,
        },
        f"constant {SMALL}, Cosine": {"batch": {**small, "maximum": SMALL}, "learningRate": cosine},
        "InsteadOfDecay, Cosine": {"batch": {**small, "growth": {"type": "InsteadOfDecay"}}, "learningRate": cosine},
    }  # fmt: skip


def job_of(name: str, network: str, epochs: int, seed: int) -> BatchGrowthJob:
    """The job of the example with the contestant's batch and learning rate, in this process."""
    given = {
        **settings(epochs)[name],
        "seed": seed,
        "epochs": epochs,
        "exchange": {"type": "SingleProcess"},
        "workload.device": "CPU",
        "workload.entrypoint": f"batchgrowth_trainer.workloads.digits:{network}",
        "workload.arguments": {"hidden": str(HIDDEN)},
        "evaluation": {"everyEpochs": 1_000_000},
    }
    return load_manifest(EXAMPLE, [f"{path}={json.dumps(value)}" for path, value in given.items()])


def trial(name: str, network: str, epochs: int, seed: int) -> Trial:
    """One training in this process."""
    job, rows = job_of(name, network, epochs, seed), Rows()
    with tempfile.TemporaryDirectory(prefix="batchgrowth-bench-") as folder:
        summary = train(job, Options(output_dir=Path(folder) / "run"), [rows])
        plan = make_plan(job.spec, decisions_of(Path(folder) / "run", job))
    shards, turns = work(plan)
    return Trial(
        accuracy=summary["accuracy"],
        loss=summary["finalLoss"],
        updates=plan.updates,
        seconds_per_shard=median(row.compute_seconds / -(-row.batch_size // plan.shard) for row in rows.rows),
        shards=shards,
        turns=turns,
        batches=[(float(stage.epoch_from), stage.batch_size) for stage in plan.stages],
    )


def work(plan: Plan) -> tuple[int, int]:
    """Over all updates, the sum of the workers times the shards of the busiest, and of these shards alone."""
    position, shards, turns = Position(), 0, 0
    while not plan.is_done(position):
        step = plan.step_at(position)
        busiest = -(-step.shards // step.workers)
        shards, turns = shards + step.workers * busiest, turns + busiest
        position = step.after
    return shards, turns
