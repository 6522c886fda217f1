"""Custom: d = what a function of the user's returns."""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from batchgrowth.extend import ENTRYPOINT, Look, MeasuredEntry, Model, two_shards

MOST_NUMBERS = 256
"""The most numbers that a custom rule remembers from look to look."""


class Custom(Model):
    """d = function(look): a function of the user's, which takes batchgrowth.extend.Look."""

    entrypoint: str = Field(
        pattern=ENTRYPOINT,
        min_length=3,
        max_length=253,
        description="The function that returns the wanted batch size, written package.module:function. It is called "
        "with a batchgrowth.extend.Look at each look, and must depend on nothing else. Required. "
        "Example: my_rules:by_noise.",
    )
    memory: int = Field(
        0,
        ge=0,
        le=MOST_NUMBERS,
        description="Numbers that the function remembers from look to look, in look.memory; they are 0 at first. "
        f"At most {MOST_NUMBERS}. Default: 0.",
    )


@dataclass(frozen=True, slots=True)
class CustomRule:
    """The batch follows a function of the user's."""

    function: Callable[[Look], float]

    def value(self, look: Look) -> float:
        """What the function returns, in examples."""
        return float(self.function(look))

    def wanted(self, look: Look, value: float) -> float:  # noqa: ARG002
        """The value itself."""
        return value


ENTRY = MeasuredEntry(
    name="Custom",
    summary="follows a function of your own",
    quantity="custom rule",
    needs_noise=True,
    block=Custom,
    implementation="batchgrowth_trainer.replica.growth:custom_rule",
    example={"entrypoint": "my_rules:by_noise"},
    memory=lambda block: block.memory,
    outer_rules=two_shards("Custom"),
)
