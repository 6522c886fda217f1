"""NoiseScale: d = multiple · tr(Σ) / |G|². McCandlish et al., 2018."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Look, MeasuredEntry, Model, Rule, exact, ratio, two_shards


class NoiseScale(Model):
    """d = multiple · tr(Σ) / |G|², the simple noise scale: McCandlish et al., 2018, section 2.2."""

    multiple: DecimalText = Field(
        "1",
        description="The wanted batch size in noise scales: less than 1 saves examples, more saves updates. A decimal "
        'in quotes, more than 0 and at most 1000. Default: "1".',
    )

    rules: ClassVar = (
        Rule(
            "multiple",
            'give a decimal more than 0 and at most 1000, such as "1"',
            lambda n: 0 < exact(n.multiple) <= 1000,
            "double(self.multiple) > 0.0 && double(self.multiple) <= 1000.0",
        ),
    )


@dataclass(frozen=True, slots=True)
class NoiseScaleRule:
    """The batch follows the noise scale: a batch of that size has as much noise as signal in its gradient."""

    multiple: float

    def value(self, look: Look) -> float:
        """The noise scale in examples."""
        return ratio(look.now.trace, look.now.square)

    def wanted(self, look: Look, value: float) -> float:  # noqa: ARG002
        """The multiple of the noise scale."""
        return self.multiple * value


ENTRY = MeasuredEntry(
    name="NoiseScale",
    summary="follows the noise of the gradient, measured while training",
    source="McCandlish et al., 2018",
    quantity="noise scale",
    needs_noise=True,
    block=NoiseScale,
    implementation=lambda settings: NoiseScaleRule(float(settings.multiple)),
    outer_rules=two_shards("NoiseScale"),
)
