"""The state of a run from which a probe begins: read, never changed, and refused if no probe can begin there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from batchgrowth.choices import EXCHANGES
from batchgrowth.errors import CheckpointError, DataError, Fault, PlanError, SpecError
from batchgrowth.growth_decisions import Course
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import Plan, make_plan
from batchgrowth.same_updates import what_differs
from batchgrowth.spec import BatchGrowthJob, Growth, JobSpec, mathematics
from torch import Tensor

from batchgrowth_trainer.record.checkpoint import newest_whole
from batchgrowth_trainer.record.decided import COURSE, COURSE_BEGINS, course_of, decisions_in
from batchgrowth_trainer.record.runs import JOB_FILE, recorded_job
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.record.storage import CHECKPOINTS


@dataclass(frozen=True, slots=True)
class ProbeStart:
    """The newest checkpoint of a run, its job, and the plan as decided until then.

    `branch_spec` is the job without a measured growth, since a branch keeps its batch; `snapshot` is the state with it.
    """

    job: BatchGrowthJob
    plan: Plan
    branch_spec: JobSpec
    snapshot: Snapshot


def start_of(folder: Path, overrides: Sequence[str] = ()) -> ProbeStart:
    """Return where a probe of the run in `folder` begins; `overrides` change settings that leave what is done the same.

    Raises DataError if there is no run or no checkpoint, or the run has ended, SpecError for an exchange that cannot be
    repeated in one process, PlanError during a warm-up, and CheckpointError if the overrides would have changed what is
    done.
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
