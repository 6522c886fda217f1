"""`spec.batch`: how large a batch is and how it grows."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from batchgrowth.spec.base import Model, Rule, exact
from batchgrowth.spec.patterns import DecimalText

LARGEST_BATCH = 16_777_216
MOST_SHARDS = 65_536


class Geometric(Model):
    """d = initial · factor^floor(epochs done / everyEpochs): GeoDamp of Sievert and Shah, 2021."""

    factor: Annotated[
        DecimalText,
        Field(
            description="What the wanted batch size is multiplied with at each milestone: a decimal in quotes, more "
            'than 1 and at most 1000. Required. Example: "2".'
        ),
    ]
    every_epochs: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="Epochs from one milestone to the next. Required. Example: 5."),
    ]

    rules: ClassVar = (
        Rule(
            "factor",
            'give a decimal more than 1 and at most 1000, such as "2"',
            lambda g: 1 < exact(g.factor) <= 1000,
            "double(self.factor) > 1.0 && double(self.factor) <= 1000.0",
        ),
    )


class Linear(Model):
    """d = initial + examplesPerUpdate · updates done: PadaDamp of Sievert and Shah, 2021."""

    examples_per_update: Annotated[
        DecimalText,
        Field(
            description="Examples by which the wanted batch size grows with each update: a decimal in quotes, more "
            'than 0 and at most 1000000. Required. Example: "0.25".'
        ),
    ]
    every_updates: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000_000,
            description="Updates between two looks at the rule; the batch size stays as it is in between. A plan holds "
            "at most 1,000 stages, so a long job needs a larger number. Unit: updates. Default: 1.",
        ),
    ] = 1

    rules: ClassVar = (
        Rule(
            "examplesPerUpdate",
            'give a decimal more than 0 and at most 1000000, such as "0.25"',
            lambda g: 0 < exact(g.examples_per_update) <= 1_000_000,
            "double(self.examplesPerUpdate) > 0.0 && double(self.examplesPerUpdate) <= 1000000.0",
        ),
    )


class Milestone(Model):
    """From this epoch on, this batch size is wanted."""

    epoch: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="Epochs done when the batch grows. Must be below spec.epochs. Required. Example: 10.",
        ),
    ]
    batch_size: Annotated[
        int,
        Field(
            ge=1,
            le=LARGEST_BATCH,
            description="The batch size wanted from then on. Past batch.maximum the learning rate falls instead, as "
            "learningRate.rule says. Unit: examples. Required. Example: 256.",
        ),
    ]


class Milestones(Model):
    """A list of epochs and batch sizes: Smith et al., 2017."""

    steps: Annotated[
        tuple[Milestone, ...],
        Field(
            strict=False,
            min_length=1,
            max_length=256,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
            description="When the batch grows, and to what: epochs and batch sizes both rise from entry to entry. "
            "From 1 to 256 entries. Required. Example: [{epoch: 10, batchSize: 256}].",
        ),
    ]

    rules: ClassVar = (
        Rule(
            "steps",
            "give the entries in the order of their epochs, each epoch once",
            lambda m: all(a.epoch < b.epoch for a, b in pairwise(m.steps)),
            "self.steps.map(s, s.epoch).isSorted() && self.steps.all(s, self.steps.exists_one(t, t.epoch == s.epoch))",
        ),
        Rule(
            "steps",
            "give a larger batchSize in each entry than in the one before",
            lambda m: all(a.batch_size < b.batch_size for a, b in pairwise(m.steps)),
            "self.steps.map(s, s.batchSize).isSorted() && "
            "self.steps.all(s, self.steps.exists_one(t, t.batchSize == s.batchSize))",
        ),
    )


def _block_rule(kind: str, block: str) -> Rule:
    return Rule(
        block,
        f"give the block {block} with type {kind}, and with no other type",
        lambda g: (g.type == kind) == (getattr(g, block) is not None),
        f"(self.type == '{kind}') == has(self.{block})",
    )


class Growth(Model):
    """The rule that the batch size follows: `type`, and the one block of that name."""

    type: Annotated[
        Literal["Constant", "Geometric", "Linear", "Milestones"],
        Field(
            description="The rule of growth: Constant stays at batch.initial; Geometric multiplies every few epochs; "
            "Linear adds a little with each update; Milestones follows a list. Default: Constant."
        ),
    ] = "Constant"
    geometric: Annotated[
        Geometric | None, Field(description="The numbers of type Geometric; given with that type only.")
    ] = None
    linear: Annotated[Linear | None, Field(description="The numbers of type Linear; given with that type only.")] = None
    milestones: Annotated[
        Milestones | None, Field(description="The list of type Milestones; given with that type only.")
    ] = None

    rules: ClassVar = (
        _block_rule("Geometric", "geometric"),
        _block_rule("Linear", "linear"),
        _block_rule("Milestones", "milestones"),
    )


class Batch(Model):
    """How many examples one update uses, from the first to the last."""

    initial: Annotated[
        int,
        Field(
            ge=1,
            le=LARGEST_BATCH,
            description="The batch size of the first update. At most batch.maximum. Unit: examples. Required. "
            "Example: 32.",
        ),
    ]
    maximum: Annotated[
        int,
        Field(
            ge=1,
            le=LARGEST_BATCH,
            description="The largest batch size that is used; when more is wanted the learning rate falls instead, as "
            "learningRate.rule says. Unit: examples. Required. Example: 512.",
        ),
    ]
    shard: Annotated[
        int,
        Field(
            ge=1,
            le=1_048_576,
            description="Examples per gradient shard: the unit of work that a worker takes, and of reproducibility. A "
            f"batch of the maximum size may have at most {MOST_SHARDS} shards. Unit: examples. Default: 32.",
        ),
    ] = 32
    growth: Annotated[Growth, Field(description="How the batch grows. Default: Constant, not at all.")] = Growth()

    rules: ClassVar = (
        Rule(
            "initial",
            "give a number no larger than batch.maximum",
            lambda b: b.initial <= b.maximum,
            "self.initial <= self.maximum",
        ),
        Rule(
            "shard",
            f"give a shard so large that batch.maximum has at most {MOST_SHARDS} of them",
            lambda b: b.maximum <= b.shard * MOST_SHARDS,
            f"self.maximum <= self.shard * {MOST_SHARDS}",
        ),
        Rule(
            "growth.milestones.steps",
            "give a first batchSize larger than batch.initial",
            lambda b: b.growth.milestones is None or b.growth.milestones.steps[0].batch_size > b.initial,
            "!has(self.growth.milestones) || self.growth.milestones.steps.all(s, s.batchSize > self.initial)",
        ),
    )
