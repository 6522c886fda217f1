"""The figures of an exchange, each declared once: the trainer's messages, reports and metrics and the job's status read
them from here.
"""

from dataclasses import dataclass, field, fields
from typing import Any

LARGEST = 2**53
"""The largest value of a figure that a report may give."""


def _total(description: str, *, part_of: str = "") -> Any:
    """Declare a count since the trainer's start; the counts of several updates are added."""
    return field(default=0, metadata={"description": description, "part_of": part_of})


def _last(description: str) -> Any:
    """Declare a value of the last update that had one; None if the exchange has no such value, or not yet."""
    return field(default=None, metadata={"description": description, "part_of": ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFigures:
    """What an exchange did in some updates, or since the trainer's start; the CRD has these descriptions."""

    bytes_sent: int = _total("Bytes that the workers have sent each other since the trainer's start.")
    replica_distance: float | None = _last("Root mean square distance of the logical replicas from their mean.")
    compression_error: float | None = _last(
        "Norm of the error that exchange.compression adds to a gradient sum, or of what TopK leaves for later, "
        "relative to the norm of the sum."
    )
    largest_staleness: int | None = _last(
        "Most updates that the Downpour server made between a worker's fetch and its push, in the last round."
    )
    mean_staleness: float | None = _last("Mean number of these updates, in the last round.")
    backups: int = _total("Parts of updates that an idle worker repeated since the trainer's start.")
    backups_first: int = _total("Repeated parts whose backup came first.", part_of="backups")

    checks: int = _total("Checks in which the workers computed the same shard, since the trainer's start.")
    differences: int = _total("Checks that found a difference.", part_of="checks")
    checked_update: int | None = _last("Newest update after which a check found no difference.")

    @property
    def checks_passed(self) -> int:
        """Return the number of checks that found no difference."""
        return self.checks - self.differences

    @property
    def backups_second(self) -> int:
        """Return the number of repeated parts whose original came first."""
        return self.backups - self.backups_first

    def then(self, later: "ExchangeFigures") -> "ExchangeFigures":
        """Return these figures combined with later ones: totals are added, and later values replace earlier ones."""
        values: dict[str, Any] = {}
        for each in fields(self):
            before = getattr(self, each.name)
            after = getattr(later, each.name)
            if each.default is not None:
                values[each.name] = before + after
            elif after is not None:
                values[each.name] = after
            else:
                values[each.name] = before
        return ExchangeFigures(**values)

    def known(self) -> dict[str, int | float]:
        """Return the figures that the exchange has, by name; a total of 0 is left out, together with its parts."""
        known: dict[str, int | float] = {}
        for each in fields(self):
            whole = each.metadata["part_of"] or each.name
            is_unused = each.default is not None and getattr(self, whole) == 0
            if not is_unused and getattr(self, each.name) is not None:
                known[each.name] = getattr(self, each.name)
        return known

    def is_possible(self) -> bool:
        """Return whether every value is from 0 to LARGEST, and no part larger than its whole."""
        for each in fields(self):
            value = getattr(self, each.name)
            most = getattr(self, each.metadata["part_of"] or each.name)
            if value is not None and not 0 <= value <= min(most, LARGEST):
                return False
        return True
