"""What schedules that reach a last factor after some epochs have in common: two settings and their rules."""

from typing import Annotated, Any

from pydantic import Field

from batchgrowth.extend import DecimalText, Rule, exact

FinalFactor = Annotated[
    DecimalText,
    Field(
        description="Factor of the learning rate at the end of the fall: a decimal in quotes, below 1. With "
        '"0" the last epoch still has a learning rate above 0. Default: "0".'
    ),
]
FallEpochs = Annotated[
    int | None,
    Field(
        ge=1,
        le=1_000_000,
        description="Epochs that the fall takes; the factor stays at finalFactor from then on. At most spec.epochs. "
        "Default: spec.epochs.",
    ),
]


def below_one() -> Rule:
    """The rule that finalFactor is below 1."""
    return Rule(
        "finalFactor",
        'give a decimal below 1, such as "0.01"',
        lambda block: exact(block.final_factor) < 1,
        "double(self.finalFactor) < 1.0",
    )


def within_the_job(name: str) -> tuple[Rule, ...]:
    """The rules of JobSpec for the block `name`: the fall ends with the job at the latest; not at 0 before that."""
    path = f"learningRate.schedule.{name}"
    absent = f"!has(self.learningRate.schedule) || !has(self.{path}) || !has(self.{path}.epochs)"

    def block(spec: Any) -> Any:
        return spec.value_at(path)

    def epochs(spec: Any) -> int:
        result: int = spec.value_at(f"{path}.epochs") or spec.epochs
        return result

    return (
        Rule(
            f"{path}.epochs",
            "give at most spec.epochs, or leave it out",
            lambda spec: epochs(spec) <= spec.epochs,
            f"{absent} || self.{path}.epochs <= self.epochs",
        ),
        Rule(
            f"{path}.finalFactor",
            "give a decimal above 0, or leave epochs out: the learning rate keeps this factor until the job ends",
            lambda spec: epochs(spec) >= spec.epochs or exact(block(spec).final_factor) > 0,
            f"{absent} || self.{path}.epochs >= self.epochs || double(self.{path}.finalFactor) > 0.0",
        ),
    )
