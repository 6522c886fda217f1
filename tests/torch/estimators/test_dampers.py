"""Rules of growth as objects: each is the block of a manifest, and its class, object and name say the same."""

from typing import Any

import pytest
from batchgrowth.choices import GROWTH
from batchgrowth.errors import SpecError
from batchgrowth_trainer.dampers import (
    NAMES,
    AdaDamp,
    Damper,
    GeoDamp,
    GradientNorm,
    NoiseScale,
    PadaDamp,
    RadaDamp,
    damper_of,
)

BLOCKS: list[tuple[Damper, dict[str, Any]]] = [
    (GeoDamp(64, 10, 2), {"type": "Geometric", "geometric": {"factor": 2, "every_epochs": 10}}),
    (GeoDamp(dwell=3), {"type": "Geometric", "geometric": {"factor": 5, "every_epochs": 3}}),
    (PadaDamp(rate=0.5), {"type": "Linear", "linear": {"examples_per_update": 0.5, "every_updates": 1}}),
    (AdaDamp(dwell=20), {"type": "LossRatio", "looks": {"every_updates": 20}}),
    (RadaDamp(), {"type": "LossAndGradient", "lossAndGradient": {"loss_weight": 5}}),
    (GradientNorm(), {"type": "GradientNorm"}),
    (NoiseScale(multiple=2), {"type": "NoiseScale", "noiseScale": {"multiple": 2}}),
    (Damper("Cabs", looks={"may_shrink": True}), {"type": "Cabs", "looks": {"may_shrink": True}}),
]


@pytest.mark.parametrize(("damper", "block"), BLOCKS, ids=lambda one: type(one).__name__)
def test_a_rule_is_a_block(damper: Damper, block: dict[str, Any]) -> None:
    assert damper.block() == block


def test_every_growth_of_the_registry_is_there() -> None:
    assert {Damper(name).block()["type"] for name in GROWTH} == set(GROWTH)
    assert {kind().block()["type"] for kind in NAMES.values()} <= set(GROWTH)


def test_equal_rules_are_one_in_a_set() -> None:
    assert len({GeoDamp(64, factor=5), GeoDamp(64, factor=5.0), GeoDamp(64, factor=4), AdaDamp(64)}) == 3
    assert len({Damper("Cabs", looks={"may_shrink": True}), Damper("Cabs")}) == 2


class Tenfold(GeoDamp):
    """A user's rule with a block and a parameter of its own."""

    def __init__(self, initial: int, most: int = 10) -> None:
        super().__init__(initial, factor=most)

    def block(self) -> dict[str, Any]:
        return {"type": "Geometric", "geometric": {"factor": 10, "every_epochs": 1}}


class OwnRule(Damper):
    """A user's rule that is none of ours."""

    def block(self) -> dict[str, Any]:
        return {"type": "Constant"}


def test_the_rule_of_a_user_stays_what_it_is() -> None:
    own = OwnRule("Cabs", 8)
    assert damper_of(own, {}) is own
    assert damper_of(own, {}).block() == {"type": "Constant"}
    assert damper_of(own, {"initial": 32}) == OwnRule("Cabs", 32)
    assert damper_of(Tenfold, {"initial": 8}).block()["geometric"]["factor"] == 10


def test_a_user_s_rule_with_parameters_that_must_be_given() -> None:
    with pytest.raises(
        SpecError, match="batch_size__least: Tenfold has no such parameter; Tenfold takes initial, most"
    ):
        damper_of(Tenfold, {"initial": 8, "least": 2})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'initial'"):
        damper_of(Tenfold, {})


def test_class_object_and_name_say_the_same() -> None:
    expected = GeoDamp(32, delay=4, factor=3)
    nested = {"initial": 32, "delay": 4}

    assert damper_of(GeoDamp, {**nested, "factor": 3}) == expected
    assert damper_of("geodamp", {**nested, "factor": 3}) == expected
    assert damper_of(GeoDamp(factor=3), nested) == expected
    assert damper_of(Damper("Cabs", 8), {"initial": 32}) == Damper("Cabs", 32)
    assert repr(expected) == "GeoDamp(initial=32, delay=4, factor=3)"
