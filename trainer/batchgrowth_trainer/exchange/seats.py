"""The seats of the members of one generation, which the driver hands out with its orders."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from batchgrowth_trainer.exchange.grid import Grid, grid_of, rows_for

TOKEN_BYTES = 16

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in one generation: its rank, the doors of its peers by their ranks, and the token.

    `rows` are those of the grid. `store` is the address of the driver's torch store, for members with GPUs only.
    """

    rank: int
    size: int
    rows: int
    doors: Mapping[int, Address]
    token: bytes = field(repr=False)
    timeout_seconds: float
    store: Address | None = None

    @property
    def grid(self) -> Grid:
        """How the members are connected."""
        return grid_of(self.size, self.rows)


def seats(
    doors: Sequence[Address],
    token: bytes,
    timeout_seconds: float,
    store: Address | None = None,
    *,
    all_connected: bool = False,
) -> Iterator[Seat]:
    """The seats of the members with these doors, by rank; each names the doors of its peers alone.

    If `all_connected`, these are all others, however many.
    """
    size, rows = len(doors), 1 if all_connected else rows_for(len(doors))
    for rank in range(size):
        peers = {peer: doors[peer] for peer in grid_of(size, rows).peers(rank)}
        yield Seat(rank, size, rows, peers, token, timeout_seconds, store)
