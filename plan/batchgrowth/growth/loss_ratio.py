"""LossRatio: d = B0 · F(w0) / F(w), with F the training loss. AdaDamp of Sievert and Shah, 2021.

F(w0) is the loss of the first batch.
"""

from batchgrowth.extend import Look, MeasuredEntry, ratio


class LossRatioRule:
    """The batch grows as the loss falls."""

    def value(self, look: Look) -> float:
        """How many times smaller the loss is than at the start; infinity if it is not above 0."""
        return ratio(look.start.loss, look.now.loss)

    def wanted(self, look: Look, value: float) -> float:
        """The initial batch size times that ratio."""
        return look.initial * value


ENTRY = MeasuredEntry(
    name="LossRatio",
    summary="grows as the training loss falls",
    source="AdaDamp of Sievert and Shah, 2021",
    quantity="loss ratio",
    implementation=lambda _: LossRatioRule(),
)
