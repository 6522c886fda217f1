"""The gain of AdaScale: its formula, when it is measured, and that growth of any kind has it."""

import math
from typing import Any

import pytest
from batchgrowth import PlanError, make_plan
from batchgrowth.choices.learning_rate_rules import gain
from batchgrowth.growth_decisions import Course, Measured
from batchgrowth.looks import Signals, Timing
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.notes import gain_note, shard_note
from batchgrowth.position import Position
from batchgrowth.spec import JobSpec
from hypothesis import given
from hypothesis import strategies as st

DOUBLING = "{type: Geometric, geometric: {factor: '2', everyEpochs: 2}}"


def job(ada_scale: str, growth: str = DOUBLING, *overrides: str) -> JobSpec:
    text = f"""
apiVersion: batchgrowth.dev/v1alpha1
kind: BatchGrowthJob
metadata: {{name: gaining}}
spec:
  workload: {{entrypoint: "a:b", examples: 64}}
  epochs: 6
  batch: {{initial: 16, maximum: 64, shard: 8, growth: {growth}}}
  learningRate: {{initial: "0.1", rule: AdaScale, adaScale: {ada_scale}}}
"""
    return read_manifest(text, overrides).spec


def signals(square: float, trace: float) -> Signals:
    return Signals(loss=1.0, batch_square=1.0, square=square, trace=trace)


def measured(examples: int, shards: int, square: float, trace: float) -> Measured:
    """The sums of an update whose estimates are exactly those numbers; it took a second and 1 ms an example."""
    whole = examples * square + trace
    return Measured(
        examples=examples, shards=shards, loss=1.0, shard_squares=whole + (shards - 1) * trace, square=examples * whole,
        timing=Timing(1 + examples / 1000, examples),
    )  # fmt: skip


def rates(course: Course, *noise: tuple[float, float]) -> list[float]:
    """The learning rate of each update of a training; `noise` is (|G|², trace), the last of which repeats."""
    position, memory, found, left = Position(), [0.0] * course.memory, list[float](), list(noise)
    while not course.plan.is_done(position):
        step = course.plan.step_at(position)
        found.append(course.learning_rate(step, memory))
        square, trace = left.pop(0) if len(left) > 1 else left[0]
        course, _, memory = course.after(step, measured(step.examples, step.shards, square, trace), memory)
        assert len(memory) == course.memory
        assert course.is_due(step.after) or course.learning_rate(step, memory) == found[-1]
        position = step.after
    return found


@pytest.mark.parametrize(
    ("square", "trace", "expected"),
    [(0.0, 5.0, 4.0), (-1.0, 5.0, 4.0), (3.0, 0.0, 1.0), (3.0, -2.0, 1.0), (0.0, 0.0, 1.0), (1.0, 64.0, 5 / 2)],
)
def test_the_gain_is_that_of_the_expected_squared_norms(square: float, trace: float, expected: float) -> None:
    """A batch of 64 over one of 16: Johnson et al., 2020, equation 4; an estimate below 0 counts as 0."""
    assert gain(signals(square, trace), 16, 64) == expected


MEASURED = st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-290)
"""What is measured, without numbers so small that their quotients lose digits."""


@given(MEASURED, MEASURED, st.integers(1, 512), st.integers(1, 512))
def test_the_gain_lies_between_1_and_the_growth_of_the_batch(square: float, trace: float, a: int, b: int) -> None:
    found, most = gain(signals(square, trace), a, b), b / a
    assert min(1.0, most) * (1 - 1e-12) <= found <= max(1.0, most) * (1 + 1e-12)


def test_a_declared_growth_gains_what_was_measured() -> None:
    """Two epochs each of batch 16, 32 and 64: 4, 2 and 1 updates an epoch, with 16 as the noise scale."""
    assert pytest.approx(rates(Course(job("{}")), (1.0, 16.0))) == [0.1] * 8 + [0.1 * 4 / 3] * 4 + [0.1 * 8 / 5] * 2


def test_without_a_look_nothing_is_gained() -> None:
    """The first look, after update 9, comes one update after the batch has grown; its window is that of all before."""
    found = rates(Course(job("{everyUpdates: 9}")), (1.0, 16.0))
    assert pytest.approx(found) == [0.1] * 9 + [0.1 * 4 / 3] * 3 + [0.1 * 8 / 5] * 2


def test_smoothing_keeps_a_share_of_earlier_sums() -> None:
    """Looks after updates 4 and 8 at noise scale 16 and then 48; half of the first window stays."""
    noise = [(1.0, 16.0)] * 4 + [(1.0, 48.0)]
    fresh, smooth = (rates(Course(job(block)), *noise)[8] for block in ("{}", "{smoothing: '0.5'}"))
    trace = (16 * 0.5 + 48) / 1.5
    assert [0.1 * (1 + 3) / (1 + 48 / 32), 0.1 * (1 + trace / 16) / (1 + trace / 32)] == pytest.approx([fresh, smooth])


def test_updates_with_one_shard_are_not_looked_at() -> None:
    """The first batch is one shard: the look at its end finds no noise, and the next takes what follows."""
    spec = job("{}", DOUBLING, "batch.shard=16")
    assert pytest.approx(rates(Course(spec), (1.0, 16.0))) == [0.1] * 10 + [0.1 * 4 / 3] * 2 + [0.1 * 8 / 5] * 2


@pytest.mark.parametrize("growth", ["NoiseScale", "Cabs", "Goodput"])
def test_a_measured_growth_and_the_gain_remember_side_by_side(growth: str) -> None:
    """The batch is decided as it would be at a constant rate, except by Cabs, which looks at the rate itself."""
    block = f"{{type: {growth}, looks: {{everyUpdates: 3}}}}"
    gaining = Course(job("{everyUpdates: 4}", block))
    constant = Course(job("null", block, "learningRate.rule=Constant"))
    assert gaining.memory == constant.memory + 6
    found = [rates(course, (1.0, 640.0)) for course in (gaining, constant)]
    assert set(found[1]) == {0.1}
    if growth != "Goodput":  # which needs batches of two sizes to see what a larger one saves
        assert max(found[0]) > 0.1
    if growth != "Cabs":
        assert len(found[0]) == len(found[1])


def test_what_measures_is_said() -> None:
    gaining, constant = job("{}"), job("null", DOUBLING, "learningRate.rule=Constant")
    assert [Course(gaining).measures, Course(gaining).needs_noise, Course(gaining).is_measured] == [True, True, False]
    assert [Course(constant).measures, Course(constant).needs_noise, Course(constant).memory] == [False, False, 0]
    assert "between 1 and B / 16, for a batch of B, which training measures at the end of each epoch" in gain_note(
        gaining
    )
    assert "every 5 updates" in gain_note(job("{everyUpdates: 5}"))
    assert "" == gain_note(constant) == shard_note(make_plan(gaining), gaining)


MEASURED: tuple[Any, ...] = ("null", "{type: NoiseScale, looks: %s}", "learningRate.rule=Constant")


@pytest.mark.parametrize(
    ("looks", "message"),
    [
        ("{everyUpdates: 24}", r"everyUpdates: 24; give updates below the 24 of the plan"),
        ("{everyEpochs: 6}", r"everyEpochs: 6; give epochs below spec\.epochs, or everyUpdates below 24"),
    ],
)
def test_looks_past_the_end_are_refused(looks: str, message: str) -> None:
    rate, growth, constant = MEASURED
    with pytest.raises(PlanError, match=r"^spec\.batch\.growth\.looks\." + message):
        make_plan(job(rate, growth % looks, constant))
    with pytest.raises(PlanError, match=r"^spec\.learningRate\.adaScale\." + message):
        make_plan(job(looks, "{type: Constant}"))


def test_a_single_epoch_needs_looks_by_update() -> None:
    with pytest.raises(PlanError, match=r"^spec\.learningRate\.adaScale: a look at the end of each epoch; give epochs"):
        make_plan(job("{}", "{type: Constant}", "epochs=1"))
    assert make_plan(job("{everyUpdates: 3}", "{type: Constant}", "epochs=1")).updates == 4
    assert math.isclose(0.1, rates(Course(job("{everyUpdates: 3}", "{type: Constant}", "epochs=1")), (1.0, 16.0))[3])
