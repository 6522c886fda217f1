"""No row of the history dies with the member that was to report it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth_trainer.member import Member, _Generation

Row = tuple[float, ...]


def member(rows: Sequence[Row]) -> Any:
    """A member that remembers these rows."""
    replica = SimpleNamespace(length=4, device="cpu")
    own: Any = SimpleNamespace(
        replica=replica, last_evaluation=None, rows_after=lambda u: [r for r in rows if r[0] > u]
    )
    return own


def told_at_the_beginning(rank: int, rows: Sequence[Row]) -> list[Any]:
    """What a member of this rank tells of its rows as a generation begins, where the driver knows the first 16."""
    told: list[Any] = []
    order: Any = SimpleNamespace(reported=16, evaluated=0)
    group: Any = SimpleNamespace(rank=rank, size=2)
    _Generation(member(rows), order, group, told.append)._send_rows_of_before()
    return told


def test_rows_that_the_driver_has_not_seen_are_told_by_whoever_has_them() -> None:
    """The member that reports is a newcomer: it has taken the state of another, and none of its rows."""
    assert [{"kind": "rows", "rows": [(17.0,), (18.0,)], "bytes": 0}] == told_at_the_beginning(
        1, [(16.0,), (17.0,), (18.0,)]
    )


def test_nothing_is_told_where_the_driver_has_seen_all() -> None:
    assert [] == told_at_the_beginning(1, [(15.0,), (16.0,)])
    assert [] == told_at_the_beginning(0, [(17.0,)]), "the member that reports tells them with its next rows"


@pytest.mark.parametrize(("step", "count"), [(10.0, 64), (1.0, 64), (0.01, 500)])
def test_an_outcome_has_the_last_rows_whatever_their_age(step: float, count: int) -> None:
    """And those of the last seconds; all of them would take time at every change of the workers."""
    rows = [(float(update), step * update) for update in range(1, 1001)]
    order: Any = SimpleNamespace(reported=0, evaluated=0)

    [told] = Member._untold(member(rows), order)

    assert rows[-count:] == told["rows"]
