"""Schedules by which the learning rate falls by epoch, one entry each."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import Field

from batchgrowth.extend import SIXTY_DIGITS, ScheduleEntry, always_acts, power, square_root
from batchgrowth.schema import DecimalText, Model, Rule, decimal_rule

# --- Constant: factor 1 ---


@dataclass(frozen=True, slots=True)
class ConstantSchedule:
    """The learning rate does not depend on the epoch."""

    def factor(self, epoch: int) -> Fraction:  # noqa: ARG002
        """Return 1."""
        return Fraction(1)


CONSTANT = ScheduleEntry(
    name="Constant",
    summary="does not depend on the epoch",
    implementation=lambda _settings, _epochs: ConstantSchedule(),
    idle=always_acts,
)


# --- Shared by the schedules that reach a last factor after some epochs: two settings and their rules ---

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


def within_the_job(name: str) -> tuple[Rule, ...]:
    """Return JobSpec's rules for block `name`: the fall ends with the job, or earlier if finalFactor is above 0."""
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
            lambda spec: epochs(spec) >= spec.epochs or Fraction(block(spec).final_factor) > 0,
            f"{absent} || self.{path}.epochs >= self.epochs || double(self.{path}.finalFactor) > 0.0",
        ),
    )


# --- Cosine: half a wave from 1 to finalFactor. Loshchilov and Hutter, 2017; torch's CosineAnnealingLR ---

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
RATIONAL = {
    Fraction(0): Fraction(1),
    Fraction(1, 3): Fraction(3, 4),
    Fraction(1, 2): Fraction(1, 2),
    Fraction(2, 3): Fraction(1, 4),
}
"""Part of the way -> the value of half a wave there. By Niven's theorem, no others before its end are rational."""
TERMS = 30
"""Terms of the cosine's series: 60 digits up to π / 2."""


class CosineBlock(Model):
    """The factor of an epoch is finalFactor + (1 - finalFactor) · (1 + cos(π · epoch / epochs)) / 2."""

    final_factor: FinalFactor = "0"
    epochs: FallEpochs = None

    rules: ClassVar = (decimal_rule("finalFactor", below=1, example="0.01"),)


@dataclass(frozen=True, slots=True)
class CosineSchedule:
    """The factor falls from 1 to `final` over `epochs`, along half a cosine wave, and stays there."""

    final: Fraction
    epochs: int

    def factor(self, epoch: int) -> Fraction:
        """Return the factor: exact after 0, 1/3, 1/2, 2/3 and all of the epochs, else to at least 50 digits."""
        if epoch >= self.epochs:
            return self.final
        return self.final + (1 - self.final) * half_wave(Fraction(epoch, self.epochs))


@lru_cache(maxsize=4096)
def half_wave(part: Fraction) -> Fraction:
    """Return (1 + cos(π · part)) / 2 for `part` from 0 to below 1."""
    if part in RATIONAL:
        return RATIONAL[part]
    angle = SIXTY_DIGITS.divide(SIXTY_DIGITS.multiply(PI, part.numerator), 2 * part.denominator)
    square = SIXTY_DIGITS.multiply(angle, angle)
    cosine = Decimal(1)
    for k in range(2 * TERMS, 0, -2):
        cosine = SIXTY_DIGITS.subtract(1, SIXTY_DIGITS.divide(SIXTY_DIGITS.multiply(square, cosine), k * (k - 1)))
    return Fraction(SIXTY_DIGITS.multiply(cosine, cosine))


COSINE = ScheduleEntry(
    name="Cosine",
    summary="falls along half a cosine wave",
    source="Loshchilov and Hutter, 2017",
    block=CosineBlock,
    implementation=lambda block, epochs: CosineSchedule(Fraction(block.final_factor), block.epochs or epochs),
    example={"finalFactor": "0.01"},
    outer_rules={"JobSpec": within_the_job("cosine")},
)


# --- Linear: 1 - (1 - finalFactor) · epoch / epochs. Li, Yumer and Ramanan, 2020; torch's LinearLR ---


class LinearScheduleBlock(Model):
    """The factor of an epoch is 1 - (1 - finalFactor) · epoch / epochs: Li, Yumer and Ramanan, 2020."""

    final_factor: FinalFactor = "0"
    epochs: FallEpochs = None

    rules: ClassVar = (decimal_rule("finalFactor", below=1, example="0.01"),)


@dataclass(frozen=True, slots=True)
class LinearSchedule:
    """The factor falls from 1 to `final` over `epochs`, by the same amount each epoch, and stays there."""

    final: Fraction
    epochs: int

    def factor(self, epoch: int) -> Fraction:
        """Return the factor during that epoch, exact."""
        return 1 - (1 - self.final) * Fraction(min(epoch, self.epochs), self.epochs)


LINEAR = ScheduleEntry(
    name="Linear",
    summary="falls by the same amount each epoch",
    source="Li, Yumer and Ramanan, 2020",
    block=LinearScheduleBlock,
    implementation=lambda block, epochs: LinearSchedule(Fraction(block.final_factor), block.epochs or epochs),
    example={"finalFactor": "0.1"},
    outer_rules={"JobSpec": within_the_job("linear")},
)


# --- Polynomial: finalFactor + (1 - finalFactor) · (1 - epoch / epochs)^power. Chen et al., 2018; PolynomialLR ---


class PolynomialBlock(Model):
    """The factor of an epoch is finalFactor + (1 - finalFactor) · (1 - epoch / epochs)^power: Chen et al., 2018."""

    power: DecimalText = Field(
        "2", description='Power of the fall: a decimal in quotes, more than 0 and at most 10. Default: "2".'
    )
    final_factor: FinalFactor = "0"
    epochs: FallEpochs = None

    rules: ClassVar = (
        decimal_rule("power", above=0, most=10, example="2"),
        decimal_rule("finalFactor", below=1, example="0.01"),
    )


@dataclass(frozen=True, slots=True)
class PolynomialSchedule:
    """The factor falls from 1 to `final` over `epochs`, along a power of the epochs that are left, and stays there."""

    power: Fraction
    final: Fraction
    epochs: int

    def factor(self, epoch: int) -> Fraction:
        """Return the factor: exact for a whole power, else to 60 digits."""
        left = Fraction(max(self.epochs - epoch, 0), self.epochs)
        return self.final + (1 - self.final) * power(left, self.power)


POLYNOMIAL = ScheduleEntry(
    name="Polynomial",
    summary="falls along a power of the epochs left",
    source="Chen et al., 2018",
    block=PolynomialBlock,
    implementation=lambda block, epochs: PolynomialSchedule(
        Fraction(block.power), Fraction(block.final_factor), block.epochs or epochs
    ),
    example={"power": "2"},
    outer_rules={"JobSpec": within_the_job("polynomial")},
)


# --- InverseSquareRoot: sqrt(offsetEpochs / (offsetEpochs + epoch)). Vaswani et al., 2017, section 5.3, by epoch ---


class InverseSquareRootBlock(Model):
    """The factor of an epoch is sqrt(offsetEpochs / (offsetEpochs + epoch)): Vaswani et al., 2017, by epoch."""

    offset_epochs: int = Field(
        1,
        ge=1,
        le=1_000_000,
        description="Epochs counted as done before the first; the more, the slower the fall. Default: 1.",
    )


@dataclass(frozen=True, slots=True)
class InverseSquareRootSchedule:
    """The factor falls with the inverse square root of the epochs."""

    offset_epochs: int

    def factor(self, epoch: int) -> Fraction:
        """Return the factor, which begins at 1: exact if the root is rational, else to 50 digits."""
        return square_root(Fraction(self.offset_epochs, self.offset_epochs + epoch))


INVERSE_SQUARE_ROOT = ScheduleEntry(
    name="InverseSquareRoot",
    summary="falls with the inverse square root of the epochs",
    source="Vaswani et al., 2017",
    block=InverseSquareRootBlock,
    implementation=lambda block, _epochs: InverseSquareRootSchedule(block.offset_epochs),
    example={"offsetEpochs": 4},
)


# --- Step: factor^floor(epoch / everyEpochs). He et al., 2016, section 4; torch's StepLR ---


class StepBlock(Model):
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

    rules: ClassVar = (decimal_rule("factor", above=0, below=1, example="0.1"),)


@dataclass(frozen=True, slots=True)
class StepSchedule:
    """The learning rate is multiplied by `base` every few epochs."""

    base: Fraction
    every_epochs: int

    def factor(self, epoch: int) -> Fraction:
        """Return the base to the power of the steps passed: exact if that is short, else to 60 digits."""
        return power(self.base, Fraction(epoch // self.every_epochs))


STEP = ScheduleEntry(
    name="Step",
    summary="multiplies by a factor every few epochs",
    source="He et al., 2016",
    block=StepBlock,
    implementation=lambda block, _epochs: StepSchedule(Fraction(block.factor), block.every_epochs),
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
