"""Step: factor^floor(epoch / everyEpochs). He et al., 2016, section 4; torch's StepLR."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Model, Rule, ScheduleEntry, exact, power


class Step(Model):
    """The factor of an epoch is factor^floor(epoch / everyEpochs): He et al., 2016."""

    factor: DecimalText = Field(
        description="Factor by which the learning rate is multiplied at each step: a decimal in quotes, more than 0 "
        'and below 1. Required. Example: "0.1".'
    )
    every_epochs: int = Field(
        ge=1,
        le=1_000_000,
        description="Epochs from one step to the next. Must be below spec.epochs. Required. Example: 30.",
    )

    rules: ClassVar = (
        Rule(
            "factor",
            'give a decimal more than 0 and below 1, such as "0.1"',
            lambda s: 0 < exact(s.factor) < 1,
            "double(self.factor) > 0.0 && double(self.factor) < 1.0",
        ),
    )


@dataclass(frozen=True, slots=True)
class StepSchedule:
    """The learning rate is multiplied by `base` every few epochs."""

    base: Fraction
    every_epochs: int

    def factor(self, epoch: int) -> Fraction:
        """The base to the power of the steps passed."""
        return power(self.base, Fraction(epoch // self.every_epochs))


ENTRY = ScheduleEntry(
    name="Step",
    summary="multiplies by a factor every few epochs",
    source="He et al., 2016",
    block=Step,
    implementation=lambda block, _epochs: StepSchedule(exact(block.factor), block.every_epochs),
    example={"factor": "0.1", "everyEpochs": 3},
    outer_rules={
        "JobSpec": (
            Rule(
                "learningRate.schedule.step.everyEpochs",
                "give a number below spec.epochs, so that there is a step",
                lambda s: (
                    s.value_at("learningRate.schedule.step") is None
                    or s.learning_rate.schedule.step.every_epochs < s.epochs
                ),
                "!has(self.learningRate.schedule) || !has(self.learningRate.schedule.step) || "
                "self.learningRate.schedule.step.everyEpochs < self.epochs",
            ),
        )
    },
)
