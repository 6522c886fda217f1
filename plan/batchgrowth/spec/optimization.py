"""`spec.learningRate` and `spec.optimizer`: what is done with a gradient."""

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from batchgrowth.learning_rates import LEARNING_RATES
from batchgrowth.optimizers import OPTIMIZERS
from batchgrowth.schedules import SCHEDULES
from batchgrowth.schema.choice import Choice, choice_of
from batchgrowth.schema.model import Model, Rule, exact
from batchgrowth.schema.patterns import DecimalText

NamePattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.*-]+$", min_length=1, max_length=253)]
"""A shell pattern of parameter names of a torch module."""


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


class Clipping(Model):
    """A bound on the gradient of each update, the mean over its batch: Pascanu et al., 2013."""

    norm: DecimalText | None = Field(
        None,
        description="The largest Euclidean norm of the whole gradient, which is scaled down to it. A decimal in "
        'quotes, more than 0. Either norm or value. Example: "1".',
    )
    value: DecimalText | None = Field(
        None,
        description="The largest absolute value of each element of the gradient. A decimal in quotes, more than 0. "
        'Either norm or value. Example: "0.5".',
    )

    rules: ClassVar = (
        Rule(
            "norm",
            "give either norm or value",
            lambda c: (c.norm is None) != (c.value is None),
            "has(self.norm) != has(self.value)",
        ),
        Rule(
            "norm",
            'give a decimal more than 0, such as "1"',
            lambda c: c.norm is None or exact(c.norm) > 0,
            "!has(self.norm) || double(self.norm) > 0.0",
        ),
        Rule(
            "value",
            'give a decimal more than 0, such as "0.5"',
            lambda c: c.value is None or exact(c.value) > 0,
            "!has(self.value) || double(self.value) > 0.0",
        ),
    )


class Averaging(Model):
    """An exponential moving average of the weights: Polyak and Juditsky, 1992."""

    decay: DecimalText = Field(
        description="What is kept of the average in each update: a decimal in quotes, more than 0 and below 1. "
        'Required. Example: "0.999".'
    )

    rules: ClassVar = (
        Rule(
            "decay",
            'give a decimal more than 0 and below 1, such as "0.999"',
            lambda a: 0 < exact(a.decay) < 1,
            "double(self.decay) > 0.0 && double(self.decay) < 1.0",
        ),
    )


class WithoutDecay(Model):
    """The parameters that the weight decay leaves alone."""

    below_dimensions: int = Field(
        0,
        ge=0,
        le=8,
        description="Parameters of fewer dimensions are not decayed: 2 spares biases and the scales of norms. "
        "Default: 0, all are decayed.",
    )
    names: tuple[NamePattern, ...] = Field(
        (),
        strict=False,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="Patterns of the names of parameters that are not decayed, at most 64; * stands for any "
        'characters. Default: none. Example: ["*.bias", "embedding.*"].',
    )


@choice_of(OPTIMIZERS)
class Optimizer(Choice):
    """What turns a gradient into new weights: `type`, and the block of that name."""

    type: str
    clipping: Clipping | None = Field(None, description="A bound on the gradient of each update. Default: none.")
    without_decay: WithoutDecay | None = Field(
        None, description="Parameters that the weight decay leaves alone. Default: none."
    )
    averaging: Averaging | None = Field(
        None, description="An average of the weights over the updates, to evaluate and export. Default: none."
    )
