"""Constant: d = initial."""

from dataclasses import dataclass

from batchgrowth.extend import GrowthEntry, Position, Until


@dataclass(frozen=True, slots=True)
class ConstantRule:
    """The batch size never changes."""

    initial: int

    def wanted(self, position: Position) -> int:  # noqa: ARG002
        """The initial batch size."""
        return self.initial

    def until(self, position: Position) -> Until:  # noqa: ARG002
        """Never."""
        return Until()


ENTRY = GrowthEntry(
    name="Constant",
    summary="stays at batch.initial",
    implementation=lambda initial, _settings, _schedule: ConstantRule(initial),
)
