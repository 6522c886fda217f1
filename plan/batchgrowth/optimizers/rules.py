"""Rules that several optimizers share."""

from batchgrowth.extend import Rule, exact


def below_one(field: str, attribute: str) -> Rule:
    """The decimal is below 1."""
    return Rule(
        field,
        "give a decimal below 1",
        lambda o: exact(getattr(o, attribute)) < 1,
        f"double(self.{field}) < 1.0",
    )


def small(field: str, attribute: str, example: str) -> Rule:
    """The decimal is more than 0 and at most 1."""
    return Rule(
        field,
        f'give a decimal more than 0 and at most 1, such as "{example}"',
        lambda o: 0 < exact(getattr(o, attribute)) <= 1,
        f"double(self.{field}) > 0.0 && double(self.{field}) <= 1.0",
    )


WEIGHT_DECAY_AT_MOST_ONE = Rule(
    "weightDecay",
    "give a decimal of at most 1",
    lambda o: exact(o.weight_decay) <= 1,
    "double(self.weightDecay) <= 1.0",
)
