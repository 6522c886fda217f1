"""Looks at users' code while training: has it changed anything since training began that alters what comes next?

The trial before the first update sees only the first calls, not a change that begins with the thousandth. If Python
state has changed, a look computes a shard with the present state and with the first one, and compares. A look also
tries a step of a user's own optimizer, as in this process and as in one that receives only the state that moves. The
time of looks is bounded: see `beginning.py`.
"""

from collections.abc import Sequence

from batchgrowth.errors import WorkloadError
from batchgrowth.plan import Step
from torch import Tensor

from batchgrowth_trainer.replica.python_state import Change
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.torch_optimizer import TorchOptimizer
from batchgrowth_trainer.replica.workload_trial import (
    REMEDY_FOR_CHANGED,
    generator_sentence,
    same_bits,
    shown,
    unfrozen_sentence,
)
from batchgrowth_trainer.user_errors import seen_at


def look_back(replica: Replica, step: Step, shard: int) -> None:
    """Compare this process with what it was when training began, by a shard of this update.

    Do nothing if no look is due, except at the end of the plan, before the weights are exported. Raises WorkloadError
    if the weights would depend on what has changed.
    """
    beginning = replica.beginning
    if not (beginning.is_due or replica.plan.is_done(step.after)):
        return
    with beginning.looking():
        for name, before, now in beginning.other_settings():
            raise WorkloadError(
                f"{name} was {before} when training began and is {now} after update {step.after.update}, which a "
                "worker that joins would not have, so the weights would depend on the workers; restore it at the "
                f"end of the call that changes it, or change it when the workload is made{seen_at(None)}"
            )
        _look_at_parameters(replica, step)
        changes = beginning.changes()
        if changes:
            _compare(replica, step, shard, changes)
        _look_at_optimizer(replica)


def look_back_at_steps(replica: Replica, step: Step) -> None:
    """Do what `look_back` does in a process that takes the optimizer's steps and computes no shards."""
    beginning = replica.beginning
    if beginning.is_due or replica.plan.is_done(step.after):
        with beginning.looking():
            _look_at_optimizer(replica)


def _look_at_parameters(replica: Replica, step: Step) -> None:
    parameters = replica.beginning.parameters
    if parameters is None:
        return
    for name in parameters.changed():
        raise WorkloadError(
            f"a call of the model has changed the parameter {name} by update {step.after.update}, which only the "
            f"optimizer may do; {REMEDY_FOR_CHANGED}; what was trained since the change may depend on the workers, so "
            f"train again{seen_at(replica.model)}"
        )
    for name in parameters.unfrozen():
        raise WorkloadError(f"update {step.after.update}: {unfrozen_sentence(name)}{seen_at(replica.model)}")


def _look_at_optimizer(replica: Replica) -> None:
    if isinstance(replica.optimizer, TorchOptimizer):
        replica.optimizer.look_back(replica.position.update)


def _compare(replica: Replica, step: Step, shard: int, changes: Sequence[Change]) -> None:
    """Raise WorkloadError if a shard comes out otherwise with these changes than without them."""
    now = _row(replica, step, shard, changes)
    then = _row(replica, step, shard)
    if same_bits(now, then):
        return
    if not same_bits(now, _row(replica, step, shard, changes)) or not same_bits(then, _row(replica, step, shard)):
        return  # not repeatable: code that draws, or a machine that computes wrongly; a spot check finds both
    drawn = [one for one in changes if one.is_generator]
    if drawn:
        raise WorkloadError(generator_sentence(drawn[0]))
    found = (one for one in changes if not same_bits(then, _row(replica, step, shard, [one])))
    change = next(found, changes[0])
    raise WorkloadError(
        f"{change.path} has changed since training began, and update {step.after.update}, shard {shard} comes out "
        f"otherwise with {change.path} = {shown(change.now)} than with {shown(change.before)}, which it is in a worker "
        "that joins, so the weights would depend on which worker computes what; keep what changes in a buffer "
        "(register_buffer), which every worker gets, or compute it from the inputs; what was trained since the change "
        f"has such weights, so train again{change.seen_at()}"
    )


def _row(replica: Replica, step: Step, shard: int, changes: Sequence[Change] = ()) -> Tensor:
    """Compute a shard with the state of the beginning and only these changes to it; return a copy of its row."""
    with replica.beginning.with_only(changes):
        partial = replica.computed_aside(step, shard)
        row = partial.row.detach().clone()
    replica.rows.release((partial,))
    return row
