"""Makes the branches of a probe, one after another in this process, by the loop of a run.

A probe begins at the newest checkpoint of a run, and never changes the run. `start_of` refuses a run that has none.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from batchgrowth.choices import EXCHANGES
from batchgrowth.errors import CheckpointError, DataError, Fault, PlanError, SpecError, WorkloadError, counted
from batchgrowth.growth_decisions import Course
from batchgrowth.manifest.reading import Say, load_manifest
from batchgrowth.plan import Plan, make_plan
from batchgrowth.probe import (
    FEWEST_UPDATES,
    Batches,
    Branch,
    Compared,
    Critical,
    Stretch,
    batches_at,
    between,
    branch_plan,
    compared,
    critical_of,
    stretch_from,
)
from batchgrowth.same_updates import what_differs
from batchgrowth.spec import BatchGrowthJob, Growth, JobSpec, mathematics
from torch import Tensor

from batchgrowth_trainer.building import begin, build_replica
from batchgrowth_trainer.drivers.single_process import make_update
from batchgrowth_trainer.record.checkpoint import newest_whole
from batchgrowth_trainer.record.decided import COURSE, COURSE_BEGINS, course_of, decisions_in
from batchgrowth_trainer.record.functions import function_in
from batchgrowth_trainer.record.runs import JOB_FILE, recorded_job
from batchgrowth_trainer.record.snapshot import Snapshot, weights_sha256
from batchgrowth_trainer.record.storage import CHECKPOINTS
from batchgrowth_trainer.record.workload_source import find_workload
from batchgrowth_trainer.replica.evaluation import training_loss
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.seeds import draw_seed

# --- Where a probe begins ---


@dataclass(frozen=True, slots=True)
class ProbeStart:
    """The newest checkpoint of a run, its job, and the plan as decided until then.

    `branch_spec` is the job without a measured growth, since a branch keeps its batch; `snapshot` is the state without
    that growth's decisions.
    """

    job: BatchGrowthJob
    plan: Plan
    branch_spec: JobSpec
    snapshot: Snapshot


def start_of(folder: Path, overrides: Sequence[str] = ()) -> ProbeStart:
    """Return where a probe of the run in `folder` begins; `overrides` must leave the updates that are done the same.

    Raises DataError if there is no run or no checkpoint, or the run has ended, SpecError for an exchange that cannot be
    repeated in one process, PlanError during a warm-up, and CheckpointError if the overrides would have changed the
    updates that are done.
    """
    recorded = recorded_job(folder)
    job = load_manifest(folder / JOB_FILE, overrides)
    spec = job.spec
    if spec.exchange.entry.promise != "Exact":
        exact = ", ".join(name for name, entry in EXCHANGES.items() if entry.promise == "Exact")
        remedy = f"probe a run whose weights are those of one process: exchange {exact}"
        raise SpecError([Fault("spec.exchange.type", spec.exchange.type, remedy)])
    saved = newest_whole(folder / CHECKPOINTS)
    if saved is None:
        raise DataError(
            f"{folder}: there is no whole checkpoint in {CHECKPOINTS}; train for longer, or stop the run by Ctrl-C, "
            "which writes one"
        )
    snapshot = saved.snapshot
    # Branches of another job would begin in a state that this job never reaches.
    different = what_differs(mathematics(recorded.spec), spec, snapshot.position, decisions_in(snapshot.tensors))
    if different:
        raise CheckpointError(f"--set: the updates that are done would have been others ({different}); undo the change")
    course = course_of(spec, snapshot.tensors, make_plan(spec))
    if course.plan.is_done(snapshot.position):
        epochs = course.plan.epochs
        raise DataError(
            f"{folder}: the run has ended after epoch {epochs}, so no update is left to branch from; probe a run that "
            f"goes on, or one that would, with --set epochs={2 * epochs}"
        )
    warmup = spec.learning_rate.warmup
    if warmup is not None and snapshot.position.update < warmup.updates:
        raise PlanError(
            f"spec.learningRate.warmup.updates: {warmup.updates:,}, and the checkpoint is of update "
            f"{snapshot.position.update:,}; probe after the warm-up, during which the learning rate follows the updates"
        )
    return ProbeStart(job, course.plan, _declared(spec), Snapshot(snapshot.position, _without_looks(spec, snapshot)))


def _declared(spec: JobSpec) -> JobSpec:
    """Return the spec with a declared growth in place of a measured one."""
    if not spec.batch.growth.entry.quantity:
        return spec
    batch = spec.batch.model_copy(update={"growth": Growth()})
    return spec.model_copy(update={"batch": batch})


def _without_looks(spec: JobSpec, snapshot: Snapshot) -> Mapping[str, Tensor]:
    """Return the tensors of the state without the decisions and the memory of a measured growth."""
    if not spec.batch.growth.entry.quantity:
        return snapshot.tensors
    rest = {name: tensor for name, tensor in snapshot.tensors.items() if name != COURSE}
    kept = Course(_declared(spec)).memory  # of a measured gain of the learning rate, which comes last
    if kept:
        none = torch.zeros(COURSE_BEGINS, dtype=torch.float64)
        rest[COURSE] = torch.cat([none, snapshot.tensors[COURSE][-kept:]])
    return rest


# --- The branches ---

MOST_EVALUATED = 4096
"""The most training examples whose loss is computed at the end of a branch, evenly spread over all."""


@dataclass(slots=True)
class Probe:
    """The findings of a probe.

    `run_sha256` is the digest of the weights at the end of the branch that is the run itself, and `notes` are lines for
    the user.
    """

    start: ProbeStart
    batches: Batches
    stretch: Stretch
    orders: int
    branches: list[Branch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    run_sha256: str = ""

    @property
    def rows(self) -> list[Compared]:
        """Return the branches, compared with each other."""
        return compared(self.branches)

    def critical(self, tolerance: float) -> Critical:
        """Return the critical batch; `tolerance` is a share of the loss."""
        return critical_of(self.rows, tolerance)


def probed(
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    examples: int | None = None,
    orders: int,
    tolerance: float,
    given: Sequence[Path] = (),
    say: Say,
) -> Probe:
    """Branch from the newest checkpoint of the run in `folder`, which stays as it is, and return what was found.

    Each branch is made with `orders` orders of the examples, the first of which is the run's. The `given` folders may
    have the workload's module. Raises what `start_of`, the plan of the branches and the workload raise.
    """
    start = start_of(folder, overrides)
    position = start.snapshot.position
    batches = batches_at(start.plan, position)
    stretch = stretch_from(start.plan, position, batches, examples)
    line, home = find_workload(folder, start.job.spec, given)
    say(line)
    begin(start.job.spec, home, function_in(folder, start.job.spec.workload.entrypoint))
    probe = Probe(start, batches, stretch, orders, notes=list(batches.left_out))
    replica = build_replica(start.branch_spec, trained=True)
    with closing(replica.reader):
        for size in batches.tried:
            _try(replica, probe, size, say)
        # One batch more, between the last that is within the tolerance and the next, narrows the answer.
        critical = probe.critical(tolerance)
        if critical.beyond is not None:
            middle = between(critical.within, critical.beyond, start.plan)
            if middle is not None:
                _try(replica, probe, middle, say)
    fewest = min(branch.updates for branch in probe.branches)
    if fewest < FEWEST_UPDATES:
        probe.notes.append(
            f"the largest batch makes {counted(fewest, 'update')}, which say little; give more --examples, or probe "
            "where the run keeps its batch for longer"
        )
    return probe


def _try(replica: Replica, probe: Probe, batch_size: int, say: Say) -> None:
    branch = _branch(replica, probe, batch_size)
    probe.branches.append(branch)
    say(f"batch {batch_size:,}: loss {branch.loss:.5g} after {probe.stretch.examples:,} examples")


def _branch(replica: Replica, probe: Probe, batch_size: int) -> Branch:
    """Train with this batch size from the checkpoint, once for each order, and return the branch with its losses.

    Raises WorkloadError if the batch of the run, or a smaller one, fails; a larger batch then has an infinite loss.
    """
    start = probe.start
    plan = branch_plan(start.branch_spec, start.plan, start.snapshot.position, batch_size)
    losses = []
    for order in range(probe.orders):
        try:
            losses.append(_loss_after(replica, probe, plan, order))
        except WorkloadError as error:
            # The run has trained with this batch, so the fault is no matter of its size.
            if batch_size <= probe.batches.of_run:
                raise
            probe.notes.append(f"a batch of {batch_size:,} fails: {error}")
            losses.append(math.inf)
            break
        if order == 0 and batch_size == probe.batches.of_run:
            probe.run_sha256 = weights_sha256(replica.state_dict())
    end = plan.position_at(plan.stages[0].first_update)
    updates = 0
    while not probe.stretch.has_ended(end):
        end = plan.step_at(end).after
        updates += 1
    rate = plan.learning_rate_at(start.snapshot.position)
    return Branch(batch_size=batch_size, learning_rate=rate, updates=updates, losses=tuple(losses))


def _loss_after(replica: Replica, probe: Probe, plan: Plan, order: int) -> float:
    """Make the updates of a branch, and return the training loss at its end."""
    seed = probe.start.job.spec.seed
    # The first order is the run's own, so that one branch repeats the run bit for bit.
    replica.follow_seed(seed if order == 0 else draw_seed(seed, "probe", order))
    replica.restore(probe.start.snapshot)
    replica.plan = plan
    replica.begin_training()
    while not probe.stretch.has_ended(replica.position):
        make_update(replica, plan.step_at(replica.position))
    every = -(-plan.examples_per_epoch // MOST_EVALUATED)
    return training_loss(replica, torch.arange(0, plan.examples_per_epoch, every))


def to_json(probe: Probe, tolerance: float, block: dict[str, Any] | None) -> dict[str, Any]:
    """Return what `batchgrowth probe --json` prints."""
    position = probe.start.snapshot.position
    return {
        "update": position.update,
        "epoch": position.epoch + position.offset / probe.start.plan.examples_per_epoch,
        "batchSize": probe.batches.of_run,
        "examples": probe.stretch.examples,
        "orders": probe.orders,
        "tolerance": tolerance,
        "branches": [row.to_json() for row in probe.rows],
        "runSha256": probe.run_sha256,
        "critical": probe.critical(tolerance).to_json(),
        "batch": block,
        "notes": probe.notes,
    }
