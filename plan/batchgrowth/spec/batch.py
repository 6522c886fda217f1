"""`spec.batch`: how large a batch is and how it grows."""

from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import LARGEST_BATCH
from batchgrowth.growth import GROWTH
from batchgrowth.measuring import Looks
from batchgrowth.schema.choice import Choice, choice_of
from batchgrowth.schema.model import Model, Rule

_MEASURED = [name for name, entry in GROWTH.items() if entry.quantity]


@choice_of(GROWTH)
class Growth(Choice):
    """The rule of growth: `type`, and the block of that name; `looks` for the rules that measure."""

    type: str
    looks: Looks | None = Field(
        None,
        description="When a measured rule looks at the training, and how far it may move the batch: only with one of "
        f"{', '.join(_MEASURED)}. Default: a look at the end of each epoch.",
    )

    rules: ClassVar = (
        Rule(
            "looks",
            "give the block looks only with a type that measures",
            lambda g: g.looks is None or g.type in _MEASURED,
            f"!has(self.looks) || self.type in {_MEASURED}",
        ),
    )


class Batch(Model):
    """How many examples one update uses, from the first to the last."""

    initial: int = Field(
        ge=1,
        le=LARGEST_BATCH,
        description="The batch size of the first update. At most batch.maximum. Unit: examples. Required. Example: 32.",
    )
    maximum: int = Field(
        ge=1,
        le=LARGEST_BATCH,
        description="The largest batch size used; when more is wanted the learning rate falls instead, as "
        "learningRate.rule says. Unit: examples. Required. Example: 512.",
    )
    shard: int | None = Field(
        None,
        ge=1,
        le=1_048_576,
        description="Examples per gradient shard: the unit of work of a worker, and of reproducibility. A finer "
        "shard makes updates slower; workers can use it only when a batch has fewer shards than workers. Unit: "
        "examples. Default: workers.examplesPerWorker.",
    )
    growth: Growth = Field(Growth(), description="How the batch grows. Default: Constant, not at all.")

    rules: ClassVar = (
        Rule(
            "initial",
            "give a number no larger than batch.maximum",
            lambda b: b.initial <= b.maximum,
            "self.initial <= self.maximum",
        ),
        *GROWTH.outer_rules("Batch"),
    )
