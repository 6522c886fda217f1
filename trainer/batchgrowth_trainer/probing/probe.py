"""The branches of a probe, made one after another in this process by the loop of a run."""

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from batchgrowth.errors import WorkloadError, counted
from batchgrowth.manifest.choosing import Say
from batchgrowth.plan import Plan
from batchgrowth.probe.branches import FEWEST_UPDATES, Batches, Stretch, batches_at, between, branch_plan, stretch_from
from batchgrowth.probe.critical import Branch, Compared, Critical, compared, critical_of

from batchgrowth_trainer.building import begin, build_replica
from batchgrowth_trainer.drivers.single_process import make_update
from batchgrowth_trainer.probing.started import ProbeStart, start_of
from batchgrowth_trainer.record.functions import function_in
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.record.workload_source import find_workload
from batchgrowth_trainer.replica.evaluation import training_loss
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.seeds import draw_seed

MOST_EVALUATED = 4096
"""The most training examples whose loss is computed at the end of a branch, evenly spread over all."""


@dataclass(slots=True)
class Probe:
    """What a probe of a run has found.

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
        middle = _middle(probe, tolerance)
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


def _middle(probe: Probe, tolerance: float) -> int | None:
    """Return a batch size between the last within the tolerance and the next, beyond it; None if there is none."""
    critical = probe.critical(tolerance)
    if critical.beyond is None:
        return None
    return between(critical.within, critical.beyond, probe.start.plan)


def _branch(replica: Replica, probe: Probe, batch_size: int) -> Branch:
    """Return what a batch size reaches. Raises WorkloadError if the batch of the run, or a smaller one, fails."""
    start = probe.start
    plan = branch_plan(start.branch_spec, start.plan, start.snapshot.position, batch_size)
    losses = []
    for order in range(probe.orders):
        try:
            losses.append(_loss_after(replica, probe, plan, order))
        except WorkloadError as error:
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
