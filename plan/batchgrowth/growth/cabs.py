"""Cabs: d = lr · tr(Σ) / F, with F the training loss, whose minimum is taken to be 0. Balles et al., 2017."""

from batchgrowth.extend import Look, MeasuredEntry, ratio, two_shards


class CabsRule:
    """The batch couples the gradient's noise with the learning rate and the loss that is left."""

    def value(self, look: Look) -> float:
        """Lr · tr(Σ) / F in examples; infinity if the loss is not above 0."""
        return ratio(look.learning_rate * look.now.trace, look.now.loss)

    def wanted(self, look: Look, value: float) -> float:  # noqa: ARG002
        """The value itself."""
        return value


ENTRY = MeasuredEntry(
    name="Cabs",
    summary="couples the gradient's noise with learning rate and loss",
    source="Balles et al., 2017",
    quantity="coupled batch",
    needs_noise=True,
    implementation=lambda _: CabsRule(),
    outer_rules=two_shards("Cabs"),
)
