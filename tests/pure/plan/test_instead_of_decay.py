"""InsteadOfDecay: the learning rate over the batch stays on the schedule's own curve, whatever the batch does."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import pytest
from batchgrowth import JobSpec, PlanError, Position, load_manifest, make_plan
from batchgrowth.choices import GROWTH, SCHEDULES
from batchgrowth.choices.growth_declared import MOST_EPOCHS, InsteadOfDecayRule
from batchgrowth.choices.learning_rate_schedules import ConstantSchedule, CosineSchedule, LinearSchedule, StepSchedule
from batchgrowth.cli import plan_table, plan_totals
from batchgrowth.extend import ScheduleRule, Until
from batchgrowth.growth_decisions import Course
from batchgrowth.looks import LARGEST_BATCH
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits-instead-of-decay.yaml"
PAGE = EXAMPLE.parents[1] / "docs" / "learning-rates.md"
SCHEDULE_RULES = GROWTH["InsteadOfDecay"].outer_rules["JobSpec"]
CASES = [
    {"type": "Step", "step": {"factor": "0.5", "everyEpochs": 2}},
    {"type": "Step", "step": {"factor": "0.1", "everyEpochs": 5}},
    {"type": "Cosine"},
    {"type": "Cosine", "cosine": {"finalFactor": "0.05", "epochs": 7}},
    {"type": "Linear"},
    {"type": "Linear", "linear": {"finalFactor": "0.25", "epochs": 4}},
    {"type": "Polynomial"},
    {"type": "Polynomial", "polynomial": {"power": "0.9"}},
    {"type": "InverseSquareRoot"},
    {"type": "InverseSquareRoot", "inverseSquareRoot": {"offsetEpochs": 3}},
]


def job(schedule: dict[str, Any], optimizer: str = "SGD", every: int = 1, **changes: Any) -> JobSpec:
    """A job whose batch of 32 grows to 192 at most instead of the learning rate's decay."""
    growth = {"type": "InsteadOfDecay", "insteadOfDecay": {"everyEpochs": every}}
    given = {
        "workload": {"entrypoint": "a:b", "examples": 500},
        "epochs": 12,
        "batch": {"initial": 32, "maximum": 192, "growth": growth},
        "learningRate": {
            "initial": "0.05", "rule": "Linear" if optimizer == "SGD" else "SquareRoot", "schedule": schedule
        },
        "optimizer": {"type": optimizer},
    }  # fmt: skip
    return JobSpec.model_validate(given | changes)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("schedule", CASES, ids=str)
def test_with_sgd_lr_over_b_is_on_the_curve_at_every_update(schedule: dict[str, Any], every: int) -> None:
    """Exactly, before the only rounding; the batch is the smallest that the curve allows at the last look."""
    plan = make_plan(job(schedule, every=every))
    for update in range(plan.updates):
        position = plan.position_at(update)
        step, stage = plan.step_at(position), plan.stage_at(update)
        factor = plan.schedule.factor(position.epoch)
        seen = plan.schedule.factor(position.epoch // every * every)
        assert min(ceil(32 / seen), 192) == step.batch_size
        assert Fraction("0.05") * factor / 32 == stage.rate * factor / step.batch_size
        assert float(Fraction("0.05") * factor / 32 * step.batch_size) == step.learning_rate


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
@pytest.mark.parametrize("schedule", CASES, ids=str)
def test_with_adam_lr_over_root_b_is_on_the_curve_at_every_update(schedule: dict[str, Any], optimizer: str) -> None:
    """To 47 digits, and exactly if the root is rational."""
    plan = make_plan(job(schedule, optimizer))
    for update in range(plan.updates):
        position = plan.position_at(update)
        step, stage = plan.step_at(position), plan.stage_at(update)
        factor = plan.schedule.factor(position.epoch)
        assert min(ceil(32 / factor), 192) == step.batch_size
        squared = (Fraction("0.05") * factor) ** 2 / 32
        error = abs((stage.rate * factor) ** 2 / step.batch_size - squared)
        assert error < Fraction(1, 10**47)
        assert error == 0 or sqrt(step.batch_size * 2) % 1  # 32 · batch is a square if 2 · batch is
        assert pytest.approx(0.05 * float(factor) * sqrt(step.batch_size / 32), rel=1e-14) == step.learning_rate


def test_smiths_and_seesaws_own_numbers() -> None:
    """Each halving of the rate doubles the batch: SGD keeps its rate, Adam's falls by 1/sqrt(2); past the maximum by
    1/2."""
    halving = {"type": "Step", "step": {"factor": "0.5", "everyEpochs": 3}}
    sgd, adam = (make_plan(job(halving, optimizer, epochs=15)).to_json()["stages"] for optimizer in ("SGD", "Adam"))
    assert [32, 64, 128, 192] == [stage["batchSize"] for stage in sgd] == [stage["batchSize"] for stage in adam]
    assert [stage["learningRate"] for stage in sgd] == [0.05, 0.05, 0.05, 0.0375]
    assert sgd[-1]["learningRateTo"] == 0.0375 / 2
    assert pytest.approx([0.05 / sqrt(2) ** k for k in range(3)]) == [stage["learningRate"] for stage in adam[:3]]
    assert adam[2]["learningRate"] == 0.025
    assert pytest.approx(adam[-1]["learningRate"] / 2) == adam[-1]["learningRateTo"]


@pytest.mark.parametrize(
    ("rule", "position", "wanted", "until"),
    [
        (InsteadOfDecayRule(32, 1, LinearSchedule(Fraction(0), 10)), Position(), 32, Until(epoch=1)),
        (InsteadOfDecayRule(32, 1, LinearSchedule(Fraction(0), 10)), Position(99, 9, 1), 320, Until(epoch=10)),
        (InsteadOfDecayRule(32, 4, LinearSchedule(Fraction(0), 10)), Position(30, 7), 54, Until(epoch=8)),
        (InsteadOfDecayRule(32, 1, StepSchedule(Fraction(1, 2), 5)), Position(12, 3), 32, Until(epoch=5)),
        (InsteadOfDecayRule(3, 1, CosineSchedule(Fraction(0), 9)), Position(12, 3), 4, Until(epoch=4)),
        (InsteadOfDecayRule(3, 1, CosineSchedule(Fraction(0), 9)), Position(12, 6), 12, Until(epoch=7)),
        (InsteadOfDecayRule(32, 3, CosineSchedule(Fraction(1, 2), 9)), Position(12, 10), 64, Until()),
        (InsteadOfDecayRule(32, 1, ConstantSchedule()), Position(12, 10), 32, Until()),
        (InsteadOfDecayRule(32, 7, StepSchedule(Fraction(1, 2), 900_000)), Position(0), 32, Until(epoch=900_004)),
        (InsteadOfDecayRule(32, 1, StepSchedule(Fraction(1, 2), 1)), Position(19, 18), LARGEST_BATCH // 2, None),
        (InsteadOfDecayRule(32, 1, StepSchedule(Fraction(1, 2), 1)), Position(19, 25), LARGEST_BATCH, Until()),
        (InsteadOfDecayRule(32, 1, LinearSchedule(Fraction(0), 10)), Position(99, 10), LARGEST_BATCH, Until()),
        (InsteadOfDecayRule(32, 1, LinearSchedule(Fraction(0), 10)), Position(0, MOST_EPOCHS), LARGEST_BATCH, Until()),
    ],
)
def test_table(rule: InsteadOfDecayRule, position: Position, wanted: int, until: Until | None) -> None:
    assert rule.wanted(position) == wanted
    assert (until or Until(epoch=position.epoch + 1)) == rule.until(position)


@given(st.integers(1, 50), st.integers(1, 7), st.integers(0, 60), st.sampled_from(sorted(SCHEDULES)))
def test_answers_hold_until_they_say(initial: int, every: int, epoch: int, name: str) -> None:
    """And are larger then; or hold to the last epoch of any job."""
    entry = SCHEDULES[name]
    schedule: ScheduleRule = entry.load()(entry.block.model_validate(entry.example) if entry.block else None, 50)
    rule = InsteadOfDecayRule(initial, every, schedule)
    wanted, until = rule.wanted(Position(0, epoch)), rule.until(Position(0, epoch)).epoch
    last = MOST_EPOCHS if until is None else until
    assert last > epoch
    assert {rule.wanted(Position(0, at)) for at in (epoch, (epoch + last) // 2, last - 1)} == {wanted}
    assert until is None or wanted < rule.wanted(Position(0, until))


def test_too_many_stages_name_a_setting_that_helps() -> None:
    batch = {"initial": 32, "maximum": 100_000, "growth": {"type": "InsteadOfDecay"}}
    message = r"^spec\.batch\.growth\.insteadOfDecay\.everyEpochs: 1 makes a plan of more than 1000 .*; 1000 is surely"
    with pytest.raises(PlanError, match=message):
        make_plan(job({"type": "Cosine"}, epochs=1_000_000, batch=batch))
    growth = {"type": "InsteadOfDecay", "insteadOfDecay": {"everyEpochs": 1000}}
    plan = make_plan(job({"type": "Cosine"}, epochs=1_000_000, batch=batch | {"growth": growth}))
    assert 400 < len(plan.stages) <= 1000


def test_an_answer_is_searched_for_and_never_walked_to() -> None:
    """Some fifty looks at the schedule, over a million epochs."""
    looks = list[int]()

    class Counted:
        def factor(self, epoch: int) -> Fraction:
            looks.append(epoch)
            return Fraction(1, 1 + (epoch > 777_777))

    assert Until(epoch=777_778) == InsteadOfDecayRule(32, 1, Counted()).until(Position())
    assert len(looks) < 60


def test_the_example_grows_to_its_maximum_with_its_workers() -> None:
    """And the learning rate falls only then."""
    stages = make_plan(load_manifest(EXAMPLE).spec).stages
    assert (stages[0].batch_size, stages[-1].batch_size) == (32, 256)
    assert (stages[0].workers, stages[-1].workers) == (1, 4)
    assert all(0.05 <= stage.learning_rate < 0.052 for stage in stages[:-1])
    assert stages[-1].learning_rate_to < 0.002


def test_the_page_shows_the_examples_plan() -> None:
    """Some of its rows, and its totals."""
    spec = load_manifest(EXAMPLE).spec
    console = Console(width=100)
    with console.capture() as shown:
        console.print(plan_table(Course(spec)))
        console.print(plan_totals(Course(spec)), highlight=False)
    printed = [line.rstrip() for line in shown.get().splitlines()]
    (block,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    lines = [line for line in block.splitlines() if line.strip() not in ("", "…")]
    assert len(lines) > 8
    assert [line for line in lines if line not in printed] == []


def test_another_distributions_optimizer_may_have_either_rule() -> None:
    """Only for our own optimizers is it known which rule suits."""
    (_, rule) = SCHEDULE_RULES
    spec = job({"type": "Linear"})
    other = spec.optimizer.model_copy(update={"type": "Lion"})
    assert rule.holds(spec.model_copy(update={"optimizer": other}))
    constant = spec.learning_rate.model_copy(update={"rule": "Constant"})
    assert not rule.holds(spec.model_copy(update={"optimizer": other, "learning_rate": constant}))
