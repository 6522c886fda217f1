"""`spec.learningRate` and `spec.optimizer`: what is done with a gradient."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from batchgrowth.spec.base import Model, Rule, exact
from batchgrowth.spec.patterns import DecimalText


def _below_one(field: str, attribute: str) -> Rule:
    return Rule(
        field,
        "give a decimal below 1",
        lambda o: exact(getattr(o, attribute)) < 1,
        f"double(self.{field}) < 1.0",
    )


WEIGHT_DECAY_AT_MOST_ONE = Rule(
    "weightDecay",
    "give a decimal of at most 1",
    lambda o: exact(o.weight_decay) <= 1,
    "double(self.weightDecay) <= 1.0",
)


class Warmup(Model):
    """A ramp of the learning rate over the first updates: Goyal et al., 2017, section 2.2."""

    updates: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000_000,
            description="Updates until the learning rate is all there. Unit: updates. Required. Example: 500.",
        ),
    ]
    initial: Annotated[
        DecimalText,
        Field(
            description="The learning rate that the ramp leaves from; the first update is one step above it. At most "
            'learningRate.initial. A decimal in quotes. Default: "0".'
        ),
    ] = "0"


class LearningRate(Model):
    """The learning rate of each update."""

    initial: Annotated[
        DecimalText,
        Field(
            description="The learning rate at batch.initial: a decimal in quotes, more than 0 and at most 1000. "
            'Required. Example: "0.05".'
        ),
    ]
    rule: Annotated[
        Literal["Constant", "DecayPastMaximum", "Linear"],
        Field(
            description="How the learning rate follows the batch. With d the wanted and B the used batch size: "
            "Constant stays as it is; DecayPastMaximum is initial · B / d, so that it falls as soon as more "
            "than batch.maximum is wanted; Linear is initial · B / batch.initial. Default: DecayPastMaximum."
        ),
    ] = "DecayPastMaximum"
    warmup: Annotated[Warmup | None, Field(description="A ramp over the first updates. Default: none.")] = None

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


class SGD(Model):
    """Stochastic gradient descent with momentum, as Sutskever et al., 2013, write it."""

    momentum: Annotated[
        DecimalText, Field(description='Momentum: a decimal in quotes, below 1. Default: "0". Example: "0.9".')
    ] = "0"
    nesterov: Annotated[bool, Field(description="Nesterov's form of momentum; needs momentum. Default: false.")] = False
    weight_decay: Annotated[
        DecimalText,
        Field(description='L2 penalty added to the gradient: a decimal in quotes, at most 1. Default: "0".'),
    ] = "0"

    rules: ClassVar = (
        _below_one("momentum", "momentum"),
        WEIGHT_DECAY_AT_MOST_ONE,
        Rule(
            "nesterov",
            "give a momentum more than 0 with it, or leave it out",
            lambda o: not o.nesterov or exact(o.momentum) > 0,
            "!self.nesterov || double(self.momentum) > 0.0",
        ),
    )


class Adam(Model):
    """Adam: Kingma and Ba, 2015."""

    beta1: Annotated[
        DecimalText,
        Field(description='Decay of the mean of gradients: a decimal in quotes, below 1. Default: "0.9".'),
    ] = "0.9"
    beta2: Annotated[
        DecimalText,
        Field(description='Decay of the mean of squared gradients: a decimal in quotes, below 1. Default: "0.999".'),
    ] = "0.999"
    epsilon: Annotated[
        DecimalText,
        Field(
            description="Added to the root of the squared mean: a decimal in quotes, more than 0 and at most 1. "
            'Default: "0.00000001".'
        ),
    ] = "0.00000001"
    weight_decay: Annotated[
        DecimalText,
        Field(
            description="Weight decay: added to the gradient by Adam, taken off the weights by AdamW. A decimal in "
            'quotes, at most 1. Default: "0".'
        ),
    ] = "0"

    rules: ClassVar = (
        _below_one("beta1", "beta1"),
        _below_one("beta2", "beta2"),
        Rule(
            "epsilon",
            'give a decimal more than 0 and at most 1, such as "0.00000001"',
            lambda o: 0 < exact(o.epsilon) <= 1,
            "double(self.epsilon) > 0.0 && double(self.epsilon) <= 1.0",
        ),
        WEIGHT_DECAY_AT_MOST_ONE,
    )


class AdamW(Adam):
    """Adam with the weight decay taken off the weights: Loshchilov and Hutter, 2019."""

    weight_decay: Annotated[
        DecimalText,
        Field(description='Taken off the weights in each update: a decimal in quotes, at most 1. Default: "0.01".'),
    ] = "0.01"


BLOCKS = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamW"}
ATTRIBUTES = {"SGD": "sgd", "Adam": "adam", "AdamW": "adam_w"}


def _only_with(kind: str, block: str) -> Rule:
    return Rule(
        block,
        f"give the block {block} with type {kind} only",
        lambda o: getattr(o, ATTRIBUTES[kind]) is None or o.type == kind,
        f"!has(self.{block}) || self.type == '{kind}'",
    )


class Optimizer(Model):
    """The rule that turns a gradient into new weights: `type`, and the one block of that name."""

    type: Annotated[
        Literal["SGD", "Adam", "AdamW"],
        Field(description="Which rule turns a gradient into new weights. Default: SGD."),
    ] = "SGD"
    sgd: Annotated[SGD | None, Field(description="The numbers of type SGD; with that type only.")] = None
    adam: Annotated[Adam | None, Field(description="The numbers of type Adam; with that type only.")] = None
    adam_w: Annotated[AdamW | None, Field(description="The numbers of type AdamW; with that type only.")] = None

    rules: ClassVar = tuple(_only_with(kind, block) for kind, block in BLOCKS.items())

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_block(cls, given: Any) -> Any:
        """The block that `type` names is always there, so nobody who reads it asks for None."""
        if not isinstance(given, dict):
            return given
        kind = given.get("type", "SGD")
        names = {BLOCKS[kind], ATTRIBUTES[kind]} if isinstance(kind, str) and kind in BLOCKS else set()
        if not names or any(given.get(name) is not None for name in names):
            return given
        return {name: value for name, value in given.items() if name not in names} | {BLOCKS[kind]: {}}

    @property
    def settings(self) -> SGD | Adam:
        """The block that `type` names."""
        settings: SGD | Adam = getattr(self, ATTRIBUTES[self.type])
        return settings
