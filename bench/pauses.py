"""How long training stands still when workers join and leave that stand ready: one resize at each of many milestones.

A pause is the trainer's own figure (`pauseSeconds` in summary.json): the longest time, over the members that were
there before, from their last committed update to the first update of the next generation. In it: the old generation's
end, Dask's new tasks, the forming of the group, and the state that newcomers are sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchgrowth.plan import Position, make_plan
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.telling.display import Quiet

from bench import ours
from bench.cases import DIGITS, make_job


@dataclass(frozen=True, slots=True)
class Pattern:
    """Workers go from `most` to `least` and back at every milestone."""

    model: str
    most: int
    least: int

    @property
    def name(self) -> str:
        """The model and the numbers of workers."""
        return f"{self.model} {self.most}-{self.least}-{self.most}"


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds stood still, of joins and of leaves, in the order in which they were."""

    pattern: str
    joins: list[float]
    leaves: list[float]


PATTERNS = tuple(Pattern(model, most, least) for model in ("mlp", "wrn") for most, least in ((2, 1), (4, 2)))


def measure(pattern: Pattern, scheduler: str, resizes: int) -> Pauses:
    """The pauses of a job with so many milestones. It begins with the larger number, so that all are ready."""
    job = _job(pattern.model, resizes)
    plan = make_plan(job.spec)
    assert len(plan.stages) == resizes + 1

    def wanted(position: Position) -> int:
        return pattern.least if plan.stage_at(position.update).index % 2 else pattern.most

    told = ours.run(job, scheduler, wanted, Quiet())
    assert told["recoveries"] == 0
    assert len(told["resizes"]) == resizes
    assert all(r["pauseSeconds"] > 0 for r in told["resizes"]), "somebody was there before every resize"
    joins = [r["pauseSeconds"] for r in told["resizes"] if r["to"] > r["from"]]
    leaves = [r["pauseSeconds"] for r in told["resizes"] if r["to"] < r["from"]]
    return Pauses(pattern.name, joins, leaves)


def _job(model: str, resizes: int) -> BatchGrowthJob:
    """A milestone after every epoch. The batch is at its maximum, so it is the learning rate that changes."""
    batch, shard, examples = (64, 16, DIGITS) if model == "mlp" else (16, 4, 32)
    synthetic = {"model": "wrn", "examples": str(examples), "test": "2"}
    return make_job(
        f"pauses-{model}",
        workload={
            "entrypoint": f"batchgrowth_trainer.workloads.{'digits:mlp' if model == 'mlp' else 'synthetic:workload'}",
            "arguments": {"hidden": "128"} if model == "mlp" else synthetic,
            "examples": examples,
        },
        epochs=resizes + 1,
        batch={
            "initial": batch,
            "maximum": batch,
            "shard": shard,
            "growth": {
                "type": "Milestones",
                "milestones": {"steps": [{"epoch": e, "batchSize": batch + e} for e in range(1, resizes + 1)]},
            },
        },
    )
