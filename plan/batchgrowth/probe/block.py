"""The part of a manifest with which a run goes on from a probe: its batch sizes so far, and then the one found."""

from typing import Any

from batchgrowth.plan import Plan
from batchgrowth.position import Position
from batchgrowth.spec import JobSpec


def batch_block(spec: JobSpec, plan: Plan, position: Position, batch_size: int) -> dict[str, Any] | None:
    """Return `spec.batch` with the batch sizes of the plan until a position as milestones, and `batch_size` from then
    on, or batch.initial if that is larger: milestones do not go below it. What is done would have been the same with
    it, so a run can resume with it.

    None if batch.maximum holds a batch of the plan below what the growth wants: a larger maximum would change it. None
    also if the job measures its growth or its learning rate: a run goes on with the same measurements alone.
    """
    if spec.batch.growth.entry.quantity or spec.learning_rate.entry.gain:
        return None
    stages = [stage for stage in plan.stages if stage.first_update <= position.update]
    if any(stage.wanted != stage.batch_size for stage in stages):
        return None
    wanted = {stage.first_update: stage.wanted for stage in stages} | {
        position.update: max(batch_size, spec.batch.initial)
    }
    steps = []
    present = spec.batch.initial
    for update, size in wanted.items():
        if size != present:
            steps.append({"update": update, "batchSize": size})
            present = size
    growth: dict[str, Any] = {"type": "Constant"}
    if steps:
        growth = {"type": "Milestones", "milestones": {"steps": steps}}
    block = {"initial": spec.batch.initial, "maximum": max(spec.batch.maximum, batch_size)}
    if spec.batch.shard is not None:
        block["shard"] = spec.batch.shard
    return {**block, "growth": growth}
