"""Growth rules by which the batch follows measurements of the training, one entry each.

A rule says which batch it wants. batchgrowth/growth_decisions.py asks it at each look, and bounds the answer
(`Course.after`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import MeasuredEntry
from batchgrowth.looks import Look, ratio, two_shards
from batchgrowth.schema import ENTRYPOINT, DecimalText, Model, decimal_rule, module_rule
from batchgrowth.shards import busiest

# --- GradientNorm: d = B0 · |G(w0)|² / |G(w)|². AdaDamp's form for neural networks, Sievert and Shah, 2021 ---
# |G|² is the unbiased squared norm of the expected gradient, and |G(w0)|² its mean until the first look at which it is
# above 0: an estimate below its own noise is no reference, as no later ratio to it would be above 0.


class GradientNormRule:
    """The batch grows as the expected gradient shrinks."""

    def value(self, look: Look) -> float:
        """Return |G|² until the first look divided by |G|² since the last one; infinity if noise hides the latter."""
        return ratio(look.first.square, look.now.square)

    def wanted(self, look: Look, value: float) -> float:
        """Return the initial batch size times the ratio in `value`."""
        return look.initial * value


GRADIENT_NORM = MeasuredEntry(
    name="GradientNorm",
    summary="grows the batch as the expected gradient shrinks",
    source="AdaDampNN of Sievert and Shah, 2021",
    quantity="gradient ratio",
    needs_noise=True,
    compares_squares=True,
    implementation=lambda _: GradientNormRule(),
    outer_rules=two_shards("GradientNorm"),
)


# --- LossRatio: d = B0 · F(w0) / F(w), with F the training loss. AdaDamp of Sievert and Shah, 2021 ---
# F(w0) is the loss of the first batch.


class LossRatioRule:
    """The batch grows as the loss falls."""

    def value(self, look: Look) -> float:
        """Return the first update's loss over the loss since the last look; infinity if the latter is not above 0."""
        return ratio(look.start.loss, look.now.loss)

    def wanted(self, look: Look, value: float) -> float:
        """Return the initial batch size times the ratio in `value`."""
        return look.initial * value


LOSS_RATIO = MeasuredEntry(
    name="LossRatio",
    summary="grows the batch as the training loss falls",
    source="AdaDamp of Sievert and Shah, 2021",
    quantity="loss ratio",
    implementation=lambda _: LossRatioRule(),
)


# --- LossAndGradient: d = B0 · (c·F0 + g0) / (c·F + g). RadaDamp of Sievert, 2021 ---


class LossAndGradientBlock(Model):
    """d = B0 · (c·F0 + g0) / (c·F + g), with F the loss and g the squared norm of a batch's gradient: RadaDamp.

    F0 and g0 are means until the first look. In RadaDamp's terms, everyUpdates is its dwell and also its wait.
    """

    loss_weight: DecimalText = Field(
        "5",
        description="Weight c of the loss beside the squared norm of the gradient. A decimal in quotes, at least 0 "
        'and at most 1000000. Default: "5".',
    )

    rules: ClassVar = (decimal_rule("lossWeight", most=1_000_000, example="5"),)


@dataclass(frozen=True, slots=True)
class LossAndGradientRule:
    """The batch grows as loss and gradient shrink together."""

    loss_weight: float

    def value(self, look: Look) -> float:
        """Return the weighted sum of loss and gradient until the first look, divided by the sum since the last one."""
        before = self.loss_weight * look.first.loss + look.first.batch_square
        return ratio(before, self.loss_weight * look.now.loss + look.now.batch_square)

    def wanted(self, look: Look, value: float) -> float:
        """Return the initial batch size times the ratio in `value`."""
        return look.initial * value


LOSS_AND_GRADIENT = MeasuredEntry(
    name="LossAndGradient",
    summary="grows the batch as loss and gradient shrink together",
    source="RadaDamp of Sievert, 2021",
    quantity="loss and gradient ratio",
    block=LossAndGradientBlock,
    implementation=lambda settings: LossAndGradientRule(float(settings.loss_weight)),
)


# --- NoiseScale: d = multiple · tr(Σ) / |G|². McCandlish et al., 2018 ---


class NoiseScaleBlock(Model):
    """d = multiple · tr(Σ) / |G|², the simple noise scale: McCandlish et al., 2018, section 2.2."""

    multiple: DecimalText = Field(
        "1",
        description="The wanted batch size in noise scales: less than 1 saves examples, more saves updates. A decimal "
        'in quotes, more than 0 and at most 1000. Default: "1".',
    )

    rules: ClassVar = (decimal_rule("multiple", above=0, most=1000, example="1"),)


@dataclass(frozen=True, slots=True)
class NoiseScaleRule:
    """The batch follows the noise scale: a batch of that size has as much noise as signal in its gradient."""

    multiple: float

    def value(self, look: Look) -> float:
        """Return the noise scale in examples."""
        return ratio(look.now.trace, look.now.square)

    def wanted(self, look: Look, value: float) -> float:  # noqa: ARG002
        """Return `multiple` times the noise scale."""
        return self.multiple * value


NOISE_SCALE = MeasuredEntry(
    name="NoiseScale",
    summary="follows the noise of the gradient, measured while training",
    source="McCandlish et al., 2018",
    quantity="noise scale",
    needs_noise=True,
    block=NoiseScaleBlock,
    implementation=lambda settings: NoiseScaleRule(float(settings.multiple)),
    outer_rules=two_shards("NoiseScale"),
)


# --- GradientDiversity: d = δ · n · Δ + 1, with n · Δ = 1 + tr(Σ) / |G|². Yin et al., 2018 ---


class GradientDiversityBlock(Model):
    """d = δ · n · Δ + 1, with Δ = Σ|∇f|² / |Σ∇f|² over n examples: Yin et al., 2018, section 3.

    The training set's n · Δ is 1 + tr(Σ) / |G|²: 1 if all gradients are equal, n if they are orthogonal.
    """

    share: DecimalText = Field(
        "1",
        description="The batch size as a share δ of the gradients' diversity n · Δ. A decimal in quotes, more than 0 "
        'and at most 1000. Default: "1".',
    )

    rules: ClassVar = (decimal_rule("share", above=0, most=1000, example="1"),)


@dataclass(frozen=True, slots=True)
class GradientDiversityRule:
    """The batch follows the diversity of the examples' gradients."""

    share: float

    def value(self, look: Look) -> float:
        """Return n · Δ in examples; infinity if |G|² does not exceed its noise."""
        return 1 + ratio(look.now.trace, look.now.square)

    def wanted(self, look: Look, value: float) -> float:  # noqa: ARG002
        """Return `share` · n · Δ + 1."""
        return self.share * value + 1


GRADIENT_DIVERSITY = MeasuredEntry(
    name="GradientDiversity",
    summary="follows the diversity of the examples' gradients",
    source="Yin et al., 2018",
    quantity="gradient diversity",
    needs_noise=True,
    block=GradientDiversityBlock,
    implementation=lambda settings: GradientDiversityRule(float(settings.share)),
    outer_rules=two_shards("GradientDiversity"),
)


# --- Cabs: d = lr · tr(Σ) / F, with F the training loss, whose minimum is taken to be 0. Balles et al., 2017 ---


class CabsRule:
    """The batch grows with the learning rate and the gradient's noise, and as the loss falls."""

    def value(self, look: Look) -> float:
        """Return lr · tr(Σ) / F in examples; infinity if the loss is not above 0."""
        return ratio(look.learning_rate * look.now.trace, look.now.loss)

    def wanted(self, look: Look, value: float) -> float:  # noqa: ARG002
        """Return the value itself."""
        return value


CABS = MeasuredEntry(
    name="Cabs",
    summary="computes the batch from the gradient's noise, the learning rate and the loss",
    source="Balles et al., 2017",
    quantity="coupled batch",
    needs_noise=True,
    implementation=lambda _: CabsRule(),
    outer_rules=two_shards("Cabs"),
)


# --- Goodput: the d with the largest throughput · statistical efficiency. Pollux of Qiao et al., OSDI 2021 ---
# The throughput is d / (a + b · load) examples per second. The load is the number of examples of the busiest worker
# when d is divided between the workers that the plan has for it, and a and b are fitted to the timed updates. The
# efficiency is (φ + B0) / (φ + d), with the noise scale φ = tr(Σ) / |G|²: the progress per example, relative to batches
# of B0.
# The rule looks at a clock, so another run may decide otherwise; to repeat a run exactly, give its decisions as
# milestones.

_QUARTERS = (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)
"""2^(k/4) for k from 0 to 3, written out because a power may differ in its last bit between machines."""


class GoodputRule:
    """The batch follows the useful examples per second."""

    def value(self, look: Look) -> float:
        """Return the useful examples per second of the present batch; 0 before an update was timed."""
        return goodput(look)(look.wanted)

    def wanted(self, look: Look, value: float) -> float:  # noqa: ARG002
        """Return the smallest candidate with the largest goodput; the present batch if no update was timed."""
        if not look.timings.updates:
            return look.wanted
        return max(candidates(look), key=goodput(look))


def candidates(look: Look) -> list[int]:
    """Return at most 100 sizes, sorted: look.initial, wanted and largest, and whole shards between, 2^(1/4) apart."""
    sizes = {look.initial, look.wanted, look.largest}
    for octave in range(math.ceil(math.log2(look.largest / look.initial))):
        for factor in _QUARTERS:
            size = math.floor(look.initial * 2**octave * factor / look.shard + 0.5) * look.shard
            if look.initial <= size < look.largest:
                sizes.add(size)
    return sorted(sizes)


def goodput(look: Look) -> Callable[[int], float]:
    """Return a function of a batch size: its examples per second times its efficiency; 0 if no update was timed."""
    fixed, per_example = look.timings.line()
    noise = ratio(max(look.now.trace, 0.0), look.now.square)

    def useful_per_second(batch: int) -> float:
        seconds = fixed + per_example * busiest(batch, -(-batch // look.shard), look.workers(batch))
        if seconds > 0:
            return batch / seconds * efficiency(noise, look.initial, batch)
        return 0.0

    return useful_per_second


def efficiency(noise: float, initial: int, batch: int) -> float:
    """Return the progress per example, relative to the first batch size; 1 if the noise cannot be measured."""
    if math.isfinite(noise):
        return (noise + initial) / (noise + batch)
    return 1.0


GOODPUT = MeasuredEntry(
    name="Goodput",
    summary="maximizes throughput times statistical efficiency by a clock, so only a replay repeats a run",
    source="Pollux of Qiao et al., 2021",
    quantity="goodput",
    needs_noise=True,
    looks_at_clock=True,
    implementation=lambda _: GoodputRule(),
    outer_rules=two_shards("Goodput"),
)


# --- Custom: d = the result of a user's function ---

MOST_NUMBERS = 256
"""The most numbers that a custom rule remembers from look to look."""


class CustomBlock(Model):
    """d = function(look): a user's function, which takes a batchgrowth.extend.Look."""

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
        description="How many numbers the function remembers from look to look, in look.memory; all are 0 at first. "
        f"At most {MOST_NUMBERS}. Default: 0.",
    )

    rules: ClassVar = (module_rule("entrypoint"),)


@dataclass(frozen=True, slots=True)
class CustomRule:
    """The batch follows a user's function."""

    function: Callable[[Look], float]

    def value(self, look: Look) -> float:
        """Return what the user's function returns, in examples."""
        return float(self.function(look))

    def wanted(self, look: Look, value: float) -> float:  # noqa: ARG002
        """Return the value itself."""
        return value


CUSTOM = MeasuredEntry(
    name="Custom",
    summary="calls a function of your own",
    quantity="custom rule",
    needs_noise=True,
    block=CustomBlock,
    implementation="batchgrowth_trainer.user_code:custom_rule",
    example={"entrypoint": "my_rules:by_noise"},
    memory=lambda block: block.memory,
    outer_rules=two_shards("Custom"),
)
