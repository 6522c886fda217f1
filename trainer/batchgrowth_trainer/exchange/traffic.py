"""The bytes that a reduction sends, by member or by all of them together."""

from collections.abc import Sequence
from functools import lru_cache

from batchgrowth_trainer.exchange.grid import grid_of
from batchgrowth_trainer.exchange.slices import is_straight, lay_out_grid, length_of, num_slices, spans_of
from batchgrowth_trainer.replica.tree import Layout, lay_out


@lru_cache(maxsize=256)
def bytes_sent(shards: int, members: int, length: int, item: int = 4, rows: int = 1) -> int:
    """Bytes that all members together send in one reduction of rows of `length` items of `item` bytes."""
    return sum(bytes_by_member(shards, members, length, item, rows))


@lru_cache(maxsize=256)
def bytes_by_member(shards: int, members: int, length: int, item: int = 4, rows: int = 1) -> tuple[int, ...]:
    """Bytes that each member sends in one reduction, in a grid of `rows` rows."""
    grid = grid_of(members, rows)
    if grid.is_mesh:
        return tuple(item * count for count in _sent_among(_counts(lay_out(shards, members)), length, item))
    layouts, across = lay_out_grid(shards, grid)
    slices = num_slices(grid, length * item)
    columns = [_sent_among(_counts(across), length_of(span), item) for span in spans_of(length, slices)]
    sent: list[int] = []
    for number, layout in enumerate(layouts):
        for place, count in enumerate(_sent_sliced(_counts(layout), spans_of(length, slices))):
            sent.append(item * (count + (columns[place][number] if place < slices else 0)))
    return tuple(sent)


def bytes_scattered(shards: int, spans: Sequence[slice], item: int = 4) -> int:
    """Bytes that all members together send in one reduce-scatter and one all-gather of these slices, by rank."""
    return item * sum(_sent_sliced(_counts(lay_out(shards, len(spans))), spans))


def _sent_among(counts: list[int], length: int, item: int) -> list[int]:
    if is_straight(len(counts), length * item):
        return [count * (len(counts) - 1) * length for count in counts]
    return _sent_sliced(counts, spans_of(length, len(counts)))


def _sent_sliced(counts: list[int], spans: Sequence[slice]) -> list[int]:
    """The items that each of these members sends: slices of its rows to their owners, and its own to all others."""
    owned = [length_of(span) for span in spans] + [0] * (len(counts) - len(spans))
    return [count * (sum(owned) - own) + own * (len(counts) - 1) for count, own in zip(counts, owned, strict=True)]


def _counts(layout: Layout) -> list[int]:
    return [len(nodes) for nodes in layout.nodes]
