"""Which members are connected: all with each other, or, if they are many, as the rows and columns of a grid.

A row is a run of consecutive ranks, and so of consecutive shards. The members at the same place of each row are a
column; rows differ in length by at most one, and the last member of a longer row is in no column. So each of P members
has some 2 sqrt(P) connections, and not P - 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

LARGEST_MESH = 64
"""The largest number of members that are all connected with each other."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks of each row; a single row is a mesh."""

    rows: tuple[range, ...]

    @property
    def size(self) -> int:
        """The number of members."""
        return self.rows[-1].stop

    @property
    def is_mesh(self) -> bool:
        """Whether all members are connected with each other."""
        return len(self.rows) == 1

    @property
    def width(self) -> int:
        """The number of columns."""
        return min(map(len, self.rows))

    def row(self, rank: int) -> range:
        """The ranks of this member's row."""
        return next(row for row in self.rows if rank in row)

    def column(self, rank: int) -> tuple[int, ...]:
        """The ranks of this member's column, in order; empty if it is in none."""
        place = rank - self.row(rank).start
        return tuple(row[place] for row in self.rows) if place < self.width else ()

    def peers(self, rank: int) -> tuple[int, ...]:
        """The members with which this one is connected, in order."""
        return tuple(sorted({*self.row(rank), *self.column(rank)} - {rank}))

    def routes(self, holds: Sequence[bool]) -> list[dict[int, list[int]]]:
        """How a state gets from the members that hold it to all: one turn after another, {sender: receivers}.

        A member sends to its own row, or to a few of its column.
        """
        full = [row for row in self.rows if any(holds[rank] for rank in row)]
        within = {next(r for r in row if holds[r]): [r for r in row if not holds[r]] for row in full}
        across: dict[int, list[int]] = {}
        onward: dict[int, list[int]] = {}
        for number, row in enumerate(row for row in self.rows if row not in full):
            turn, giver = divmod(number, len(full))
            place = turn % self.width
            across.setdefault(full[giver][place], []).append(row[place])
            onward[row[place]] = [rank for rank in row if rank != row[place]]
        turns = ({sender: to for sender, to in turn.items() if to} for turn in (within, across, onward))
        return [turn for turn in turns if turn]


def rows_for(size: int) -> int:
    """The number of rows of a group of this size: one, a mesh, or about its square root."""
    return 1 if size <= LARGEST_MESH else math.isqrt(size - 1) + 1


@lru_cache(maxsize=64)
def grid_of(size: int, rows: int = 1) -> Grid:
    """The grid of `size` members in `rows` rows."""
    cuts = [size * row // rows for row in range(rows + 1)]
    return Grid(tuple(range(cuts[row], cuts[row + 1]) for row in range(rows)))
