"""GradientNorm: d = B0 · |G(w0)|² / |G(w)|². AdaDamp's form for neural networks, Sievert and Shah, 2021.

|G|² is the unbiased squared norm of the expected gradient, and |G(w0)|² its mean until the first look.
"""

from batchgrowth.extend import Look, MeasuredEntry, ratio, two_shards


class GradientNormRule:
    """The batch grows as the expected gradient shrinks."""

    def value(self, look: Look) -> float:
        """How many times smaller |G|² is than at the start; infinity if it does not exceed its noise."""
        return ratio(look.first.square, look.now.square)

    def wanted(self, look: Look, value: float) -> float:
        """The initial batch size times that ratio."""
        return look.initial * value


ENTRY = MeasuredEntry(
    name="GradientNorm",
    summary="grows as the expected gradient shrinks",
    source="AdaDampNN of Sievert and Shah, 2021",
    quantity="gradient ratio",
    needs_noise=True,
    implementation=lambda _: GradientNormRule(),
    outer_rules=two_shards("GradientNorm"),
)
