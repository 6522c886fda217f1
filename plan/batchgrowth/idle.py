"""Whether a choice can act in a job: each entry of a registry answers by `Entry.idle`, from the job's finished plan.

An answer is a Fault for each thing that can never act: its field, why it cannot, and what would let it act. The answers
are notes (notes.py), since such a job can be trained.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from batchgrowth.errors import Fault, counted
from batchgrowth.shards import shard_count


@dataclass(frozen=True, slots=True)
class FinishedPlan:
    """A job's spec with its finished plan.

    `grown` is the plan whose batch grows as fast as it may: the plan itself unless the growth is measured. The fields
    have no types here, because entries are loaded while the models of the spec are built: they are a JobSpec and two
    Plans.
    """

    spec: Any
    plan: Any
    grown: Any

    @property
    def moves(self) -> bool:
        """Return True if the growth changes the batch or the learning rate between two stages."""
        return len({(stage.batch_size, stage.rate) for stage in self.grown.stages}) > 1

    @property
    def largest_batch(self) -> int:
        """Return the largest batch size of the job."""
        return int(max(stage.batch_size for stage in self.grown.stages))

    @property
    def most_workers(self) -> int:
        """Return the most workers that a stage requests."""
        return int(max(stage.workers for stage in self.grown.stages))

    def shards_of(self, batch_size: int) -> int:
        """Return the number of shards of a batch of that size, which takes no more examples than there are."""
        return shard_count(min(batch_size, self.plan.examples_per_epoch), self.plan.shard, self.plan.replicas)


Faults = tuple[Fault, ...]


def always_acts(job: FinishedPlan) -> Faults:  # noqa: ARG001
    """Return nothing: the entry acts in every job."""
    return ()


def growth_idle(job: FinishedPlan) -> Faults:
    """Return why the batch never grows and the learning rate never follows it; nothing if one of them does."""
    if job.moves:
        return ()
    growth = job.spec.batch.growth
    batch = job.spec.batch
    never = f"{growth.type} never changes the batch or the learning rate"
    if batch.maximum == batch.initial and not job.spec.learning_rate.entry.falls_past_maximum:
        return (
            Fault(
                "spec.batch.growth",
                f"{never}, since batch.maximum is batch.initial",
                f"give a batch.maximum larger than {batch.initial:,}",
            ),
        )
    if growth.entry.needs_noise and job.shards_of(batch.initial) < 2:
        examples = job.plan.examples_per_epoch
        given = f"{never}, since each update takes the {counted(examples, 'example')} in one shard"
        return (Fault("spec.batch.growth", given, smaller_shard(examples)),)
    if growth.entry.quantity:
        remedy = "give a larger mostChange"
        # Of what one look adds, half an example is enough for a shard of one example.
        if growth.looks is None or batch.initial * (float(growth.looks.most_change) - 1) >= 0.5:
            remedy = "give a larger mostChange, or a smaller batch.shard"
        given = f"{never}, since a look may not change the batch by a whole shard"
        return (Fault("spec.batch.growth.looks", given, remedy),)
    coarser = growth.entry.coarser(growth.settings, job.plan.epochs, job.plan.updates, 1)
    if coarser is None:
        return (Fault("spec.batch.growth", never, "give settings with which it changes before the end"),)
    unit = "epochs"
    most = job.plan.epochs
    if coarser.field.endswith("Updates"):
        unit = "updates"
        most = job.plan.updates
    remedy = f"give a number below the {most:,} {unit} of the plan"
    if most == 1:
        remedy = "give more epochs"
    return (Fault(f"spec.batch.growth.{coarser.field}", f"{coarser.given:,}, so {never}", remedy),)


def rate_idle(job: FinishedPlan) -> Faults:
    """Return why the learning rate never follows the batch; nothing if it does, or if the growth itself is idle."""
    rate = job.spec.learning_rate
    if _same_batch_by_mistake(job) or any(stage.rate != Fraction(rate.initial) for stage in job.grown.stages):
        return ()
    return (_rate_stands(job),)


def gain_idle(job: FinishedPlan) -> Faults:
    """Return why the gain is 1 in every update; nothing if it may be more, or if the growth itself is idle."""
    initial = job.spec.batch.initial
    grows = any(stage.batch_size > initial for stage in job.grown.stages)
    if _same_batch_by_mistake(job):
        return ()
    if not grows:
        return (_rate_stands(job),)
    if job.shards_of(job.largest_batch) < 2:
        most = min(job.largest_batch, job.plan.examples_per_epoch)
        return (
            Fault(
                "spec.learningRate.rule",
                f"{job.spec.learning_rate.rule} never changes the learning rate, since each update takes at most "
                f"{counted(most, 'example')}, in one shard",
                smaller_shard(most),
            ),
        )
    return ()


def smaller_shard(examples: int) -> str:
    """Return the remedy for what compares shards if an update of so many examples is a single one."""
    if examples == 1:
        return "give more workload.examples: a single one cannot be divided into shards"
    return f"give a batch.shard below {examples:,}"


def _same_batch_by_mistake(job: FinishedPlan) -> bool:
    """Return True if a growth was chosen that never acts: its own note names the cause."""
    return not job.moves and job.spec.batch.growth.type != "Constant"


def _rate_stands(job: FinishedPlan) -> Fault:
    return Fault(
        "spec.learningRate.rule",
        f"{job.spec.learning_rate.rule} never changes the learning rate, since each batch has batch.initial, "
        f"{job.spec.batch.initial:,} examples",
        "leave the rule out, or let the batch grow",
    )


def schedule_idle(job: FinishedPlan) -> Faults:
    """Return why the schedule never changes the learning rate; nothing if it does."""
    schedule = job.plan.schedule
    last = job.plan.epochs - 1
    if schedule.factor(last) != schedule.factor(0):
        return ()
    path = "spec.learningRate.schedule"
    if last == 0:
        given = f"{job.spec.learning_rate.schedule.type} never changes the learning rate, which is constant in an epoch"
        return (Fault(path, given, "give 2 spec.epochs or more, or leave the schedule out"),)
    given = f"{job.spec.learning_rate.schedule.type} never changes the learning rate in {last + 1:,} epochs"
    return (Fault(path, given, "give settings with which it falls earlier"),)
