"""ElasticAveraging: each logical replica moves towards the centre, and the centre towards the replicas' mean."""

import torch
from batchgrowth.shards import subtrees, tree_sum
from torch import Tensor

from batchgrowth_trainer.exchange.all_reduce import Reduction
from batchgrowth_trainer.exchange.logical_replicas import LogicalReplicas, State
from batchgrowth_trainer.exchange.strategy import Setting


class ElasticAveraging(LogicalReplicas):
    """The strategy of ElasticAveraging; it adds the replicas' distances to the centre along the fixed tree.

    The centre is the model itself.
    """

    has_centre = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._part = float(self.replica.spec.exchange.settings.elasticity)
        self._reduction = Reduction(self.group)
        self._room = torch.empty_like(self.replica.parameters.vector.data)

    def mix(self, states: dict[int, State], turn: int, *, stop: bool = False) -> bool:  # noqa: ARG002
        """Move each replica towards the centre, and the centre towards the replicas, by the same distances."""
        replicas = self.local.replicas
        # All distances are those before the exchange, so it does not matter which replica moves first.
        ways = {number: state["parameters"] - self.centre for number, state in states.items()}
        for number, way in ways.items():
            states[number]["parameters"].sub_(way, alpha=self._part / replicas)
        rows = [tree_sum(lo, hi, ways.__getitem__, Tensor.add_) for lo, hi in subtrees(*self.local.run, replicas)]
        reduced = self._reduction(rows, replicas, self._room)
        self.centre.add_(reduced.total, alpha=self._part / replicas)
        self.wait_seconds += reduced.wait_seconds
        return False
