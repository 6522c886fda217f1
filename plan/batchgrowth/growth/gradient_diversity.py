"""GradientDiversity: d = δ · n · Δ + 1, with n · Δ = 1 + tr(Σ) / |G|². Yin et al., 2018."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Look, MeasuredEntry, Model, Rule, exact, ratio, two_shards


class GradientDiversity(Model):
    """d = δ · n · Δ + 1, with Δ = Σ|∇f|² / |Σ∇f|² over n examples: Yin et al., 2018, section 3.

    The training set's n · Δ is 1 + tr(Σ) / |G|²: 1 if all gradients are equal, n if they are orthogonal.
    """

    share: DecimalText = Field(
        "1",
        description="The share δ of n · Δ that the batch may reach. A decimal in quotes, more than 0 and at most 1000. "
        'Default: "1".',
    )

    rules: ClassVar = (
        Rule(
            "share",
            'give a decimal more than 0 and at most 1000, such as "1"',
            lambda d: 0 < exact(d.share) <= 1000,
            "double(self.share) > 0.0 && double(self.share) <= 1000.0",
        ),
    )


@dataclass(frozen=True, slots=True)
class GradientDiversityRule:
    """The batch follows the diversity of the examples' gradients."""

    share: float

    def value(self, look: Look) -> float:
        """N · Δ in examples; infinity if |G|² does not exceed its noise."""
        return 1 + ratio(look.now.trace, look.now.square)

    def wanted(self, look: Look, value: float) -> float:  # noqa: ARG002
        """That share of it, and 1 more."""
        return self.share * value + 1


ENTRY = MeasuredEntry(
    name="GradientDiversity",
    summary="follows the diversity of the examples' gradients",
    source="Yin et al., 2018",
    quantity="gradient diversity",
    needs_noise=True,
    block=GradientDiversity,
    implementation=lambda settings: GradientDiversityRule(float(settings.share)),
    outer_rules=two_shards("GradientDiversity"),
)
