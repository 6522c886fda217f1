"""From the spec's `batch` to the policy that it names."""

from __future__ import annotations

from decimal import Decimal

from batchgrowth.policies.constant import ConstantPolicy
from batchgrowth.policies.geometric import GeometricPolicy
from batchgrowth.policies.linear import LinearPolicy
from batchgrowth.policies.milestones import MilestonesPolicy
from batchgrowth.policies.protocol import Policy
from batchgrowth.spec import Batch, exact


def policy_for(batch: Batch) -> Policy:
    """The policy of `batch.growth.type`, with the numbers of its block."""
    growth = batch.growth
    if growth.geometric is not None:
        return GeometricPolicy(batch.initial, Decimal(growth.geometric.factor), growth.geometric.every_epochs)
    if growth.linear is not None:
        return LinearPolicy(batch.initial, exact(growth.linear.examples_per_update), growth.linear.every_updates)
    if growth.milestones is not None:
        steps = growth.milestones.steps
        return MilestonesPolicy(batch.initial, tuple(s.epoch for s in steps), tuple(s.batch_size for s in steps))
    return ConstantPolicy(batch.initial)
