"""When the metrics are measured on held-out data."""

from batchgrowth.plan import Plan, Position
from batchgrowth.spec import JobSpec


def evaluation_due(spec: JobSpec, plan: Plan, position: Position, evaluated: int) -> bool:
    """True if an epoch ends at `position` and is due for evaluation; epochs up to `evaluated` are done.

    The last epoch is always evaluated.
    """
    if position.offset or position.epoch <= evaluated:
        return False
    return position.epoch % spec.evaluation.every_epochs == 0 or plan.is_done(position)
