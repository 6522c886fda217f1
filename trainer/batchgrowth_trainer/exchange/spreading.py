"""What members learn of each other when their group has formed: where each stands, and the state of the most advanced.

Over the connections of the grid alone; in a mesh that is one trip.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from batchgrowth_trainer.exchange.group import Group


def swap_with_all(group: Group, mine: Tensor) -> list[Tensor]:
    """Every member's tensor, in the order of the ranks; all have the shape of `mine`. Raises PeerLost."""
    grid, rank = group.grid, group.rank
    row, column = grid.row(rank), grid.column(rank)
    block = _joined(group, row, mine.unsqueeze(0), dict.fromkeys(row, 1))
    if grid.is_mesh:
        return list(block)
    if column:
        table = _joined(group, column, block, {peer: len(grid.row(peer)) for peer in column})
        if rank == row[0] and len(row) > grid.width:
            group.swap({row[-1]: table}, {})
    else:
        table = mine.new_empty((grid.size, *mine.shape))
        group.swap({}, {row[0]: table})
    return list(table)


def spread_state(group: Group, holds: Sequence[bool], vectors: Sequence[Tensor]) -> None:
    """Copy the vectors of the members that hold the state, by rank, into those of all others. Raises PeerLost."""
    for turn in group.grid.routes(holds):
        for sender, receivers in turn.items():
            for vector in vectors:
                if group.rank == sender:
                    group.swap(dict.fromkeys(receivers, vector), {})
                elif group.rank in receivers:
                    group.swap({}, {sender: vector})


def _joined(group: Group, ranks: Sequence[int], mine: Tensor, lengths: dict[int, int]) -> Tensor:
    """The tensors of these ranks, one below the other; `lengths` are their first dimensions."""
    landing = {peer: mine.new_empty((lengths[peer], *mine.shape[1:])) for peer in ranks if peer != group.rank}
    group.swap(dict.fromkeys(landing, mine), landing)
    return torch.cat([mine if peer == group.rank else landing[peer] for peer in ranks])
