"""How long training pauses when ready workers join and leave: one resize at each of many milestones.

A pause is the trainer's own figure (`pauseSeconds` in summary.json): the longest time, over the members of the old
generation, from its last committed update to the first update of the next one. It covers the end of the old
generation, Dask's new tasks, the forming of the group, and sending the state to newcomers. With `verify`, as by
default, every worker also computes one shard again before the group ends, which is measured beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob

from bench import ours
from bench.cases import DIGITS, MODELS, make_job


@dataclass(frozen=True, slots=True)
class Pattern:
    """The number of workers alternates between `most` and `least` at every milestone."""

    model: str
    most: int
    least: int
    verify: bool = False

    @property
    def name(self) -> str:
        """The model and the numbers of workers."""
        name = f"{self.model} {self.most}-{self.least}-{self.most}"
        return f"{name}, verified" if self.verify else name


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses of joins and of leaves in seconds, in their order."""

    pattern: str
    joins: list[float]
    leaves: list[float]
    verify: bool = False


PATTERNS = (
    *(Pattern(model, most, least) for model in ("mlp", "wrn") for most, least in ((2, 1), (4, 2))),
    *(Pattern(model, 2, 1, verify=True) for model in ("mlp", "wrn")),
)


def measure(pattern: Pattern, scheduler: str, resizes: int) -> Pauses:
    """Return the pauses of a job with `resizes` milestones, which starts with the larger number of workers."""
    job = _job(pattern.model, resizes, verify=pattern.verify)
    plan = make_plan(job.spec)
    assert len(plan.stages) == resizes + 1

    def desired_workers(_plan: Plan, position: Position) -> int:
        if plan.stage_at(position.update).index % 2:
            return pattern.least
        return pattern.most

    summary = ours.run(job, scheduler, desired_workers)
    assert summary["recoveries"] == 0
    assert len(summary["resizes"]) == resizes
    assert all(r["pauseSeconds"] > 0 for r in summary["resizes"]), "a resize had no member of the old generation"
    joins = [r["pauseSeconds"] for r in summary["resizes"] if r["to"] > r["from"]]
    leaves = [r["pauseSeconds"] for r in summary["resizes"] if r["to"] < r["from"]]
    return Pauses(pattern.name, joins, leaves, pattern.verify)


def _job(model: str, resizes: int, *, verify: bool) -> BatchGrowthJob:
    """Return a job with a milestone after every epoch; its batch is at the maximum: only the learning rate changes."""
    entrypoint, arguments = MODELS[model]
    batch = 64
    examples = DIGITS
    if model == "wrn":
        batch = 16
        examples = 32
        arguments = arguments | {"examples": "32"}
    steps = [{"epoch": epoch, "batchSize": batch + epoch} for epoch in range(1, resizes + 1)]
    return make_job(
        f"pauses-{model}",
        workload={"entrypoint": entrypoint, "arguments": arguments, "examples": examples},
        epochs=resizes + 1,
        verify=verify,
        batch={
            "initial": batch,
            "maximum": batch,
            "shard": batch // 4,
            "growth": {"type": "Milestones", "milestones": {"steps": steps}},
        },
    )
