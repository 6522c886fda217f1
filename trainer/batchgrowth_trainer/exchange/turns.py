"""Which update of a round a worker of an asynchronous exchange begins, so that no gradient is too stale.

The staleness of a gradient is the number of updates made between the fetch of its weights and its push. Each of those
was under way at the fetch, or has begun since. So the number of both together is an upper bound, which is known before
an update begins: one begins only if it raises the bound of none under way, and its own, above the maximum.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class _Begun:
    """An update under way: its index, what was made at its fetch, and the most that its staleness can become."""

    index: int
    made: int
    bound: int


class Turns:
    """The updates 0 to `updates` - 1 of a round, which begin in order; `maximum` is that of the staleness."""

    def __init__(self, updates: int, maximum: int) -> None:
        self._updates = updates
        self._maximum = maximum
        self._next = 0
        self._under_way: dict[int, _Begun] = {}
        self.staleness: list[int] = []
        """Of each gradient, in the order of their pushes."""

    @property
    def is_over(self) -> bool:
        """Whether all updates are made."""
        return len(self.staleness) == self._updates

    @property
    def under_way(self) -> set[int]:
        """The ranks that compute."""
        return set(self._under_way)

    def may_begin(self) -> bool:
        """Whether a further update may begin now."""
        bounds = [len(self._under_way), *(begun.bound + 1 for begun in self._under_way.values())]
        return self._next < self._updates and (not self._under_way or max(bounds) <= self._maximum)

    def begin(self, rank: int) -> int:
        """Return the index of the update that this rank begins now, with the weights of now."""
        assert self.may_begin()
        for begun in self._under_way.values():
            begun.bound += 1
        self._under_way[rank] = _Begun(self._next, len(self.staleness), len(self._under_way))
        self._next += 1
        return self._next - 1

    def end(self, rank: int) -> int:
        """Return the index of the update whose gradient this rank has pushed, and which is made now."""
        begun = self._under_way.pop(rank)
        self.staleness.append(len(self.staleness) - begun.made)
        return begun.index
