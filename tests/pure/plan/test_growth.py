"""Growth rules: a table for each, and the contract that every registered rule keeps."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from batchgrowth.choices import GROWTH, LEARNING_RATES
from batchgrowth.choices.growth_declared import ConstantRule, GeometricRule, LinearRule, MilestonesRule
from batchgrowth.choices.learning_rate_schedules import ConstantSchedule, CosineSchedule
from batchgrowth.extend import GrowthRule, Until
from batchgrowth.learning_rate import rate_by_rule
from batchgrowth.plan import make_plan
from batchgrowth.position import Position
from batchgrowth.spec import Batch, LearningRate, Workers
from hypothesis import given
from hypothesis import strategies as st

CONSTANT = ConstantRule(32)
GEOMETRIC = GeometricRule(32, Decimal("1.5"), 5)
SLOW = GeometricRule(32, Decimal("1.0001"), 1)
LINEAR = LinearRule(32, Fraction("0.25"), 10)
MILESTONES = MilestonesRule(32, (10, 20), (64, 256))


@pytest.mark.parametrize(
    ("rule", "position", "wanted", "until"),
    [
        (CONSTANT, Position(), 32, Until()),
        (CONSTANT, Position(999, 99, 9), 32, Until()),
        (GEOMETRIC, Position(0, 0), 32, Until(epoch=5)),
        (GEOMETRIC, Position(40, 4, 9), 32, Until(epoch=5)),
        (GEOMETRIC, Position(50, 5), 48, Until(epoch=10)),
        (GEOMETRIC, Position(150, 20), 162, Until(epoch=25)),
        (SLOW, Position(0, 0), 32, Until(epoch=1)),
        (SLOW, Position(1, 1), 33, Until(epoch=308)),
        (SLOW, Position(308, 308), 34, Until(epoch=607)),
        (LINEAR, Position(0), 32, Until(update=10)),
        (LINEAR, Position(9), 32, Until(update=10)),
        (LINEAR, Position(10), 35, Until(update=20)),
        (LINEAR, Position(20), 37, Until(update=30)),
        (LinearRule(32, Fraction("0.01"), 1), Position(1), 33, Until(update=101)),
        (MILESTONES, Position(0, 9, 5), 32, Until(epoch=10)),
        (MILESTONES, Position(0, 10), 64, Until(epoch=20)),
        (MILESTONES, Position(0, 25), 256, Until()),
    ],
)
def test_table(rule: GrowthRule, position: Position, wanted: int, until: Until) -> None:
    assert rule.wanted(position) == wanted
    assert until == rule.until(position)


@given(st.integers(1, 50), st.decimals("1.001", "3", places=3), st.integers(1, 7), st.integers(0, 60))
def test_geometric_answers_hold_until_they_say(initial: int, factor: Decimal, every: int, epoch: int) -> None:
    """The exact power rounded up, the same in each epoch before `until`, and larger there."""
    rule = GeometricRule(initial, factor, every)
    wanted = rule.wanted(Position(0, epoch))
    assert -(-initial * Fraction(factor) ** (epoch // every) // 1) == wanted
    until = rule.until(Position(0, epoch)).epoch
    assert until is not None
    assert rule.wanted(Position(0, until - 1)) == wanted
    assert wanted < rule.wanted(Position(0, until))


@given(st.integers(1, 50), st.fractions("1/100", 9), st.integers(1, 30), st.integers(0, 400))
def test_linear_answers_hold_until_they_say(initial: int, step: Fraction, every: int, update: int) -> None:
    rule = LinearRule(initial, step, every)
    wanted = rule.wanted(Position(update))
    until = rule.until(Position(update)).update
    assert until is not None
    assert until > update
    assert rule.wanted(Position(until - 1)) == wanted
    assert wanted < rule.wanted(Position(until))


@pytest.mark.parametrize(
    ("growth", "rule"),
    [
        ({}, CONSTANT),
        ({"type": "Geometric", "geometric": {"factor": "1.5", "everyEpochs": 5}}, GEOMETRIC),
        ({"type": "Linear", "linear": {"examplesPerUpdate": "0.25", "everyUpdates": 10}}, LINEAR),
        (
            {
                "type": "Milestones",
                "milestones": {"steps": [{"epoch": 10, "batchSize": 64}, {"epoch": 20, "batchSize": 256}]},
            },
            MILESTONES,
        ),
    ],
)
def test_the_spec_names_the_rule(growth: dict[str, object], rule: GrowthRule) -> None:
    batch = Batch.model_validate({"initial": 32, "maximum": 512, "growth": growth})
    assert rule == batch.growth.entry.load()(32, batch.growth.settings, ConstantSchedule())


@pytest.mark.parametrize("name", [name for name, entry in GROWTH.items() if not entry.quantity])
def test_contract(name: str) -> None:
    """The example is valid, the batch starts at its initial size, and each answer holds until the rule says."""
    entry = GROWTH[name]
    block = {entry.block_name: entry.example} if entry.block else {}
    growth = Batch.model_validate({"initial": 32, "maximum": 64, "growth": {"type": entry.name, **block}}).growth
    rule = entry.load()(32, growth.settings, CosineSchedule(Fraction(0), 50))
    position = Position()
    assert rule.wanted(position) == 32
    for _ in range(20):
        wanted, until = rule.wanted(position), rule.until(position)
        assert until.epoch is None or until.update is None
        if until.epoch is not None:
            assert until.epoch > position.epoch
            assert rule.wanted(Position(position.update, until.epoch - 1)) == wanted
            position = Position(position.update + 1, until.epoch)
        elif until.update is not None:
            assert until.update > position.update
            assert rule.wanted(Position(until.update - 1, position.epoch)) == wanted
            position = Position(until.update, position.epoch)
        else:
            assert rule.wanted(Position(10**6, 10**6)) == wanted
            return
        assert wanted != rule.wanted(position)


@pytest.mark.parametrize("name", LEARNING_RATES)
def test_learning_rate_contract(name: str) -> None:
    """The initial batch has the initial rate, and only a rule that falls past the maximum sees what was wanted."""
    rate = LearningRate.model_validate({"initial": "0.05", "rule": name})
    past = rate_by_rule(rate, 32, 1024, 512)
    assert rate_by_rule(rate, 32, 32, 32) == Fraction("0.05")
    assert rate.entry.falls_past_maximum == (past != rate_by_rule(rate, 32, 512, 512))


@pytest.mark.parametrize(
    ("rule", "wanted", "used", "expected"),
    [
        ("Constant", 1024, 512, Fraction("0.05")),
        ("DecayPastMaximum", 512, 512, Fraction("0.05")),
        ("DecayPastMaximum", 1024, 512, Fraction("0.025")),
        ("DecayPastMaximum", 16_000, 128, Fraction("0.0004")),
        ("Linear", 1024, 512, Fraction("0.8")),
        ("SquareRoot", 1024, 512, Fraction("0.2")),
        ("SquareRoot", 72, 72, Fraction("0.075")),
    ],
)
def test_learning_rate(rule: str, wanted: int, used: int, expected: Fraction) -> None:
    rate = LearningRate.model_validate({"initial": "0.05", "rule": rule})
    assert rate_by_rule(rate, 32, wanted, used) == expected


def test_an_irrational_learning_rate_is_precise_to_fifty_digits() -> None:
    rate = LearningRate.model_validate({"initial": "0.05", "rule": "SquareRoot"})
    assert abs(rate_by_rule(rate, 32, 64, 64) ** 2 - Fraction("0.005")) < Fraction(1, 10**50)


def test_warmup(small_job: Any) -> None:
    """The first update is one step above the start, and the last one of the ramp is the whole rate."""
    rate = "initial: '0.5', rule: Constant"
    plan = make_plan(small_job(f"learningRate={{{rate}}}").spec)
    warm = make_plan(small_job(f"learningRate={{{rate}, warmup: {{updates: 5}}}}").spec)
    assert plan.learning_rate_at(Position()) == 0.5
    rates = [warm.learning_rate_at(warm.position_at(update)) for update in range(8)]
    assert rates[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert rates[4:] == [0.5, 0.5, 0.5, 0.5]


@pytest.mark.fault("A06")
@pytest.mark.parametrize(
    ("batch_size", "minimum", "maximum", "expected"),
    [(32, 1, 8, 1), (256, 1, 8, 2), (383, 1, 8, 2), (5120, 1, 8, 8), (32, 3, 8, 3), (256, 2, 2, 2)],
)
def test_workers(batch_size: int, minimum: int, maximum: int, expected: int) -> None:
    workers = Workers(examples_per_worker=128, minimum=minimum, maximum=maximum)
    assert workers.desired(batch_size) == expected
