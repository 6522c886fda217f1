"""How the batch grows: one policy, one file. `policy_for` picks the one that a spec names."""

from batchgrowth.policies.choice import policy_for
from batchgrowth.policies.constant import ConstantPolicy
from batchgrowth.policies.geometric import GeometricPolicy
from batchgrowth.policies.linear import LinearPolicy
from batchgrowth.policies.milestones import MilestonesPolicy
from batchgrowth.policies.protocol import Measurements, Policy, Until

__all__ = [
    "ConstantPolicy",
    "GeometricPolicy",
    "LinearPolicy",
    "Measurements",
    "MilestonesPolicy",
    "Policy",
    "Until",
    "policy_for",
]
