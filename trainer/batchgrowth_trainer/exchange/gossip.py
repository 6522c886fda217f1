"""Gossip: each logical replica averages its weights with the weights of its neighbours in a graph.

logical_replicas.py has the replicas' states and rounds; `Gossip.mix` averages neighbours' weights. `circles` in
batchgrowth/choices/exchanges.py chooses the neighbours.
"""

from collections.abc import Mapping, Sequence

import torch
from batchgrowth.choices.exchanges import circles
from torch import Tensor

from batchgrowth_trainer.exchange.logical_replicas import LogicalReplicas, State


class Gossip(LogicalReplicas):
    """The strategy of Gossip."""

    def mix(self, states: dict[int, State], turn: int, *, stop: bool = False) -> bool:  # noqa: ARG002
        """Send this member's replicas to the members that hold their neighbours, and take the means."""
        spec = self.replica.spec
        asked = circles(spec.exchange.settings.graph, self.local.replicas, turn, spec.seed)
        weights = {number: state["parameters"] for number, state in states.items()}
        weights |= self._fetched(weights, asked)
        # All means are made before one is written: each replica averages the weights that its neighbours had.
        means = {number: _mean([weights[one] for one in asked[number]]) for number in states}
        for number, mean in means.items():
            states[number]["parameters"].copy_(mean)
        return False

    def _fetched(self, mine: Mapping[int, Tensor], asked: Sequence[Sequence[int]]) -> dict[int, Tensor]:
        """Return the weights of other members' replicas, with which this member's replicas average theirs.

        Also send the weights of this member's replicas to the members that need them.
        """
        owners = {number: rank for rank, run in enumerate(self.runs) for number in range(*run)}
        trips = {(number, owners[one]) for one, circle in enumerate(asked) for number in circle}
        outgoing: dict[int, list[Tensor]] = {}
        coming: dict[int, list[int]] = {}
        # Both ends sort alike, so a receiver knows whose weights a message has.
        sent = sorted((number, to) for number, to in trips if owners[number] != to)
        for number, to in sent:
            if owners[number] == self.group.rank:
                outgoing.setdefault(to, []).append(mine[number])
            elif to == self.group.rank:
                coming.setdefault(owners[number], []).append(number)
        vector = self.replica.parameters.vector.data
        landing = {peer: vector.new_empty(len(numbers), len(vector)) for peer, numbers in coming.items()}
        self.swap(
            {peer: torch.cat(some) for peer, some in outgoing.items()},
            {peer: place.view(-1) for peer, place in landing.items()},
        )
        return {number: landing[peer][at] for peer, numbers in coming.items() for at, number in enumerate(numbers)}


def _mean(vectors: Sequence[Tensor]) -> Tensor:
    """Return the mean, added in this order."""
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total += vector
    return total.div_(len(vectors))
