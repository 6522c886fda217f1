"""`spec.learningRate` and `spec.optimizer`: what is done with a gradient."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.learning_rates import LEARNING_RATES
from batchgrowth.optimizers import OPTIMIZERS
from batchgrowth.schedules import SCHEDULES
from batchgrowth.schema.choice import Choice, choice_of
from batchgrowth.schema.model import Model, Rule, exact
from batchgrowth.schema.patterns import DecimalText


class Warmup(Model):
    """A ramp of the learning rate over the first updates: Goyal et al., 2017, section 2.2."""

    updates: int = Field(
        ge=1, le=1_000_000_000, description="Length of the warm-up. Unit: updates. Required. Example: 500."
    )
    initial: DecimalText = Field(
        "0",
        description="The learning rate at the foot of the ramp; the first update is one step above it. At most "
        'learningRate.initial. A decimal in quotes. Default: "0".',
    )


@choice_of(SCHEDULES)
class Schedule(Choice):
    """How the learning rate falls by epoch: `type`, and the block of that name."""

    type: str


@choice_of(LEARNING_RATES, "rule")
class LearningRate(Choice):
    """The learning rate of each update."""

    initial: DecimalText = Field(
        description="The learning rate at batch.initial: a decimal in quotes, more than 0 and at most 1000. "
        'Required. Example: "0.05".'
    )
    rule: str
    schedule: Schedule | None = Field(
        None,
        description="How the learning rate falls by epoch: a factor, constant during each epoch, of what the rule says."
        " Default: Constant.",
    )
    warmup: Warmup | None = Field(None, description="A ramp over the first updates. Default: none.")

    rules: ClassVar = (
        Rule(
            "initial",
            'give a decimal more than 0 and at most 1000, such as "0.05"',
            lambda r: 0 < exact(r.initial) <= 1000,
            "double(self.initial) > 0.0 && double(self.initial) <= 1000.0",
        ),
        Rule(
            "warmup.initial",
            "give a decimal no larger than learningRate.initial",
            lambda r: r.warmup is None or exact(r.warmup.initial) <= exact(r.initial),
            "!has(self.warmup) || double(self.warmup.initial) <= double(self.initial)",
        ),
    )


@choice_of(OPTIMIZERS)
class Optimizer(Choice):
    """What turns a gradient into new weights: `type`, and the block of that name."""

    type: str
