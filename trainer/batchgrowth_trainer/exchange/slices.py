"""How a reduction cuts its rows: which are short, into how many slices a long one is cut, and where."""

from functools import lru_cache

from batchgrowth_trainer.exchange.grid import Grid
from batchgrowth_trainer.replica.tree import Layout, lay_out, lay_out_runs

SHORT_BYTES = 64 << 10
EMPTY = slice(0, 0)


def length_of(span: slice) -> int:
    """The numbers in a slice."""
    return int(span.stop - span.start)


def is_straight(members: int, nbytes: int) -> bool:
    """Whether each member sends its rows to all others, as they are."""
    return members == 2 or nbytes <= SHORT_BYTES


def num_slices(grid: Grid, nbytes: int) -> int:
    """The number of slices in which a row of the grid adds up."""
    return min(grid.width, -(-nbytes // SHORT_BYTES) or 1) if SHORT_BYTES else grid.width


def spans_of(length: int, slices: int, block: int = 1) -> list[slice]:
    """As many slices, of whole blocks but for the last."""
    blocks = -(-length // block)
    cuts = [min(blocks * place // slices * block, length) for place in range(slices + 1)]
    return [slice(cuts[place], cuts[place + 1]) for place in range(slices)]


@lru_cache(maxsize=256)
def lay_out_grid(shards: int, grid: Grid) -> tuple[tuple[Layout, ...], Layout]:
    """The layout within each row of the grid, and that across its rows."""
    runs = lay_out(shards, grid.size).runs
    rows = tuple(lay_out_runs(shards, runs[row.start : row.stop]) for row in grid.rows)
    return rows, lay_out_runs(shards, [(runs[row[0]][0], runs[row[-1]][1]) for row in grid.rows])
