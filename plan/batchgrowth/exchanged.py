"""What the exchange of a training did, since its trainer started or lately."""

from dataclasses import astuple, dataclass

LARGEST = 2**53
"""The largest number that a report may give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """Totals since the start of the trainer, and the last values of what belongs to some exchanges only.

    `bytes_sent` is what the workers have sent each other; of `backups` parts of updates that were repeated, in
    `backups_first` the backup came first. `replica_distance` is the root mean square distance of the logical replicas
    from their mean, `compression_error` the part of its norm by which a sum of gradients was changed, or that was left
    for later, and the staleness is in updates. None means that the exchange has no such thing, or that it is not known
    yet.
    """

    bytes_sent: int = 0
    replica_distance: float | None = None
    compression_error: float | None = None
    largest_staleness: int | None = None
    mean_staleness: float | None = None
    backups: int = 0
    backups_first: int = 0

    def is_possible(self) -> bool:
        """Whether a training can have done this."""
        return all(0 <= (value or 0) <= LARGEST for value in astuple(self)) and self.backups_first <= self.backups
