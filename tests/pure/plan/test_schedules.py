"""Schedules of the learning rate: closed forms, the contract of every schedule, and what a plan makes of them."""

from __future__ import annotations

import json
import math
import pickle
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from batchgrowth import JobSpec, PlanError, Position, load_manifest, make_plan, mathematics
from batchgrowth.choices import SCHEDULES
from batchgrowth.choices.learning_rate_schedules import half_wave
from batchgrowth.cli import plan_table, plan_totals
from batchgrowth.extend import ScheduleRule, power, square_root
from batchgrowth.growth_decisions import Course
from batchgrowth.learning_rate import schedule_of
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


def job(schedule: dict[str, Any] | None, **changes: Any) -> JobSpec:
    """A small spec with a schedule, whose batch does not grow."""
    rate = {"initial": "0.1"} | ({"schedule": schedule} if schedule is not None else {})
    given = {
        "workload": {"entrypoint": "a:b", "examples": 100},
        "epochs": 10,
        "batch": {"initial": 32, "maximum": 64},
        "learningRate": rate,
    }
    return JobSpec.model_validate(given | changes)


def schedule(type_: str, block: dict[str, Any] | None = None, epochs: int = 10) -> ScheduleRule:
    """The schedule of a job."""
    entry = SCHEDULES[type_]
    chosen = {"type": type_} | ({entry.block_name: block} if block is not None else {})
    return schedule_of(job(chosen, epochs=epochs).learning_rate, epochs)


def example(name: str) -> dict[str, Any]:
    """`learningRate.schedule` with the example of a registered schedule."""
    entry = SCHEDULES[name]
    return {"type": name} | ({entry.block_name: dict(entry.example)} if entry.block else {})


@pytest.mark.parametrize(
    ("type_", "block", "factors"),
    [
        ("Constant", None, {0: 1, 9: 1}),
        ("Step", {"factor": "0.1", "everyEpochs": 3}, {0: 1, 2: 1, 3: "1/10", 5: "1/10", 6: "1/100", 9: "1/1000"}),
        ("Cosine", None, {0: 1, 5: "1/2"}),
        ("Cosine", {"epochs": 6, "finalFactor": "0.2"}, {0: 1, 2: "4/5", 3: "3/5", 4: "2/5", 6: "1/5", 9: "1/5"}),
        ("Linear", None, {0: 1, 1: "9/10", 9: "1/10"}),
        ("Linear", {"epochs": 4, "finalFactor": "0.2"}, {0: 1, 1: "4/5", 3: "2/5", 4: "1/5", 9: "1/5"}),
        ("Polynomial", None, {0: 1, 1: "81/100", 9: "1/100"}),
        ("Polynomial", {"power": "3", "epochs": 2, "finalFactor": "0.5"}, {0: 1, 1: "9/16", 2: "1/2", 9: "1/2"}),
        ("InverseSquareRoot", None, {0: 1, 3: "1/2", 8: "1/3"}),
        ("InverseSquareRoot", {"offsetEpochs": 4}, {0: 1, 5: "2/3"}),
    ],
)
def test_rational_factors_are_exact(type_: str, block: dict[str, Any] | None, factors: dict[int, int | str]) -> None:
    made = schedule(type_, block)
    assert {epoch: Fraction(factor) for epoch, factor in factors.items()} == {e: made.factor(e) for e in factors}


@pytest.mark.parametrize(
    ("type_", "block", "closed_form"),
    [
        ("Cosine", None, lambda e: (1 + math.cos(math.pi * e / 10)) / 2),
        ("Polynomial", {"power": "1.5"}, lambda e: (1 - e / 10) ** 1.5),
        ("Polynomial", {"power": "0.5", "finalFactor": "0.1"}, lambda e: 0.1 + 0.9 * (1 - e / 10) ** 0.5),
        ("InverseSquareRoot", {"offsetEpochs": 3}, lambda e: math.sqrt(3 / (3 + e))),
        ("Step", {"factor": "0.123456789012", "everyEpochs": 1}, lambda e: 0.123456789012**e),
    ],
)
def test_other_factors_are_near_their_closed_forms(type_: str, block: dict[str, Any] | None, closed_form: Any) -> None:
    made = schedule(type_, block)
    assert pytest.approx([closed_form(e) for e in range(10)], rel=1e-14) == [float(made.factor(e)) for e in range(10)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_contract(name: str) -> None:
    """1 at first, never rising, above 0 to the last epoch of the example, a fraction, and it travels to the workers."""
    made = schedule_of(job(example(name)).learning_rate, 10)
    factors = [made.factor(epoch) for epoch in range(10)]
    assert factors[0] == 1
    assert all(before >= after > 0 for before, after in pairwise(factors))
    assert all(isinstance(factor, Fraction) for factor in factors)
    assert made == pickle.loads(pickle.dumps(made))
    assert made.factor(1_000_000) <= factors[-1]


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_learning_rate_of_each_update_is_the_rules_times_the_factor(name: str) -> None:
    """Rounded once, constant within an epoch, and warmed up after that."""
    growth = {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 3}}
    spec = job(example(name), batch={"initial": 32, "maximum": 64, "growth": growth})
    ramp = spec.learning_rate.model_validate(
        {"initial": "0.1", "schedule": example(name), "warmup": {"updates": 20, "initial": "0.02"}}
    )
    plan, warm = make_plan(spec), make_plan(spec.model_copy(update={"learning_rate": ramp}))
    for update in range(plan.updates):
        position = plan.position_at(update)
        exact = Fraction(1, 10) * Fraction(plan.stage_at(update).batch_size, plan.stage_at(update).wanted)
        expected = float(exact * plan.schedule.factor(position.epoch))
        assert expected == plan.step_at(position).learning_rate == plan.learning_rate_at(position)
        warmed = 0.02 + (expected - 0.02) * (update + 1) / 20 if update < 19 else expected
        assert pytest.approx(warmed, rel=1e-14) == warm.step_at(position).learning_rate


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_splits_no_stage_and_the_stage_says_where_it_leads(name: str) -> None:
    growth = {"type": "Linear", "linear": {"examplesPerUpdate": "0.5", "everyUpdates": 5}}
    batch = {"initial": 8, "maximum": 24, "growth": growth}
    spec, plain = job(example(name), batch=batch), job(None, batch=batch)
    plan = make_plan(spec)
    starts = [stage.first_update for stage in plan.stages]
    assert [stage.first_update for stage in make_plan(plain).stages] == starts
    for stage, shown in zip(plan.stages, plan.to_json()["stages"], strict=True):
        ends = stage.first_update, stage.first_update + stage.updates - 1
        first, last = (plan.step_at(plan.position_at(update)).learning_rate for update in ends)
        assert (first, last) == (stage.learning_rate, stage.learning_rate_to)
        assert first == shown["learningRate"]
        assert last == shown.get("learningRateTo", first)
        assert ("learningRateTo" in shown) == (first != last)


@pytest.mark.parametrize("given", [None, {}, {"type": "Constant"}], ids=str)
def test_constant_changes_no_plan(given: dict[str, Any] | None) -> None:
    plan = make_plan(job(given))
    assert make_plan(job(None)) == plan
    assert {plan.step_at(plan.position_at(update)).learning_rate for update in range(plan.updates)} == {0.1}
    assert "learningRateTo" not in json.dumps(plan.to_json())


def test_the_mathematics_of_older_checkpoints_is_unchanged() -> None:
    """A checkpoint from before there were schedules has these fields, and must still resume."""
    assert mathematics(load_manifest(DIGITS).spec) == {
        "seed": 0,
        "workload": {
            "entrypoint": "batchgrowth_trainer.workloads.digits:workload", "arguments": {}, "examples": 1437
        },
        "epochs": 30,
        "batch": {
            "initial": 32, "maximum": 512, "shard": 128,
            "growth": {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 5}},
        },
        "learningRate": {"initial": "0.05", "rule": "DecayPastMaximum"},
        "optimizer": {"type": "SGD", "sgd": {"momentum": "0.9", "nesterov": True, "weightDecay": "0.0005"}},
        "workers": {"threads": 1},
    }  # fmt: skip


def test_a_schedule_belongs_to_the_mathematics() -> None:
    spec = job({"type": "Cosine"})
    expected = {"initial": "0.1", "rule": "DecayPastMaximum", "schedule": {"type": "Cosine", "cosine": {
        "finalFactor": "0"}}}  # fmt: skip
    assert mathematics(spec)["learningRate"] == expected


@pytest.mark.parametrize(
    "given",
    [
        {"type": "Constant"},
        {"type": "Step", "step": {"factor": "0.999999999999", "everyEpochs": 1}},
        {"type": "Cosine"},
        {"type": "Linear"},
        {"type": "Polynomial", "polynomial": {"power": "10"}},
        {"type": "Polynomial", "polynomial": {"power": "9.5"}},
        {"type": "InverseSquareRoot"},
    ],
    ids=str,
)
def test_a_million_epochs_are_planned_at_once(given: dict[str, Any]) -> None:
    (stage,) = make_plan(job(given, epochs=1_000_000)).stages
    assert stage.updates == 4_000_000
    assert 0 < stage.learning_rate_to <= 0.1


@pytest.mark.parametrize(
    ("factor", "epochs", "first"), [("0.1", 1_000_000, 323), ("0.5", 2000, 1072), ("0.000000000001", 100, 27)]
)
def test_a_learning_rate_that_vanishes_names_the_schedule(factor: str, epochs: int, first: int) -> None:
    """The first epoch whose float is 0, and what would do."""
    message = rf"^spec\.learningRate\.schedule: Step makes the learning rate 0 from epoch {first} on; give settings"
    with pytest.raises(PlanError, match=message):
        make_plan(job({"type": "Step", "step": {"factor": factor, "everyEpochs": 1}}, epochs=epochs))


def test_a_rule_that_makes_it_vanish_is_named_although_there_is_a_schedule() -> None:
    growth = {"type": "Geometric", "geometric": {"factor": "1000", "everyEpochs": 1}}
    spec = job({"type": "Linear"}, epochs=900, batch={"initial": 32, "maximum": 64, "growth": growth})
    with pytest.raises(PlanError, match=r"^spec\.learningRate\.rule: DecayPastMaximum makes the learning rate 0 from"):
        make_plan(spec)


def test_the_table_shows_where_the_learning_rate_goes() -> None:
    growth = {"type": "Milestones", "milestones": {"steps": [{"epoch": 9, "batchSize": 64}]}}
    spec = job({"type": "Linear"}, batch={"initial": 32, "maximum": 64, "growth": growth})
    console = Console(width=120)
    with console.capture() as shown:
        console.print(plan_table(Course(spec)))
    rows = shown.get().splitlines()
    assert "0.1 → 0.02" in rows[1]
    assert rows[2].split()[-4:] == ["0.01", "1", "2", "10.0%"]
    assert "a constant batch of 32 takes 40, 1.1 times as many" in plan_totals(Course(spec))


def test_at_the_end_the_learning_rate_is_that_of_the_last_epoch() -> None:
    """Where a finished run is resumed, and reported."""
    plan = make_plan(job({"type": "Linear"}))
    assert plan.learning_rate_at(Position(plan.updates, plan.epochs)) == 0.01


@given(st.fractions(0, 1000))
def test_a_square_root_is_exact_or_precise(number: Fraction) -> None:
    assert number == square_root(number**2)
    assert abs(square_root(number) - Fraction(math.sqrt(number))) <= Fraction(1, 10**13)
    assert abs(square_root(number) ** 2 - number) <= Fraction(1, 10**47)


@given(st.decimals("0", "1", places=12), st.integers(1, 1000))
def test_a_power_is_exact_or_precise(base: Any, exponent: int) -> None:
    """Relative to its size, unless it is too small for a float."""
    expected = Fraction(base) ** exponent
    error = abs(power(Fraction(base), Fraction(exponent)) - expected)
    assert error <= expected / 10**58 or expected < Fraction(1, 10**900)


def test_half_a_wave_is_symmetric_and_has_its_known_values() -> None:
    """To fifty digits; cos(π/6) is half the root of 3, and cos(π/4) half that of 2."""
    for part, cosine in ((Fraction(1, 6), square_root(Fraction(3))), (Fraction(1, 4), square_root(Fraction(2)))):
        assert abs(half_wave(part) - (1 + cosine / 2) / 2) < Fraction(1, 10**49)
    for part in (Fraction(k, 1000) for k in range(1, 1000)):
        assert abs(half_wave(part) + half_wave(1 - part) - 1) < Fraction(1, 10**55)
