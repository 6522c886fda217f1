"""LossAndGradient: d = B0 · (c·F0 + g0) / (c·F + g). RadaDamp of Sievert, 2021."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Look, MeasuredEntry, Model, Rule, exact, ratio


class LossAndGradient(Model):
    """d = B0 · (c·F0 + g0) / (c·F + g), with F the loss and g the squared norm of a batch's gradient: RadaDamp.

    F0 and g0 are means until the first look. In RadaDamp's terms, everyUpdates is its dwell and also its wait.
    """

    loss_weight: DecimalText = Field(
        "5",
        description="Weight c of the loss beside the squared norm of the gradient. A decimal in quotes, at least 0 "
        'and at most 1000000. Default: "5".',
    )

    rules: ClassVar = (
        Rule(
            "lossWeight",
            'give a decimal of at most 1000000, such as "5"',
            lambda m: exact(m.loss_weight) <= 1_000_000,
            "double(self.lossWeight) <= 1000000.0",
        ),
    )


@dataclass(frozen=True, slots=True)
class LossAndGradientRule:
    """The batch grows as loss and gradient shrink together."""

    loss_weight: float

    def value(self, look: Look) -> float:
        """How many times smaller the weighted sum of loss and gradient is than until the first look."""
        before = self.loss_weight * look.first.loss + look.first.batch_square
        return ratio(before, self.loss_weight * look.now.loss + look.now.batch_square)

    def wanted(self, look: Look, value: float) -> float:
        """The initial batch size times that ratio."""
        return look.initial * value


ENTRY = MeasuredEntry(
    name="LossAndGradient",
    summary="grows as loss and gradient shrink together",
    source="RadaDamp of Sievert, 2021",
    quantity="loss and gradient ratio",
    block=LossAndGradient,
    implementation=lambda settings: LossAndGradientRule(float(settings.loss_weight)),
)
