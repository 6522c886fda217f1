"""Measured growth: what the estimates are, what a look may decide, and that a plan follows from the decisions."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from batchgrowth.choices import GROWTH
from batchgrowth.choices.growth_measured import CustomRule
from batchgrowth.cli import plan_list
from batchgrowth.expected_batch import ExpectedBatch, expected_batch_of, expected_plan
from batchgrowth.growth_decisions import Course, Measured
from batchgrowth.looks import Look, Timing
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import BatchDecision, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import JobSpec
from hypothesis import given, settings
from hypothesis import strategies as st

MEASURED = [name for name, entry in GROWTH.items() if entry.quantity and not isinstance(entry.implementation, str)]
"""The rules that are implemented here; Custom's function is loaded by the trainer."""
Update = tuple[float, float, float]
"""Mean loss, |G|² and the trace of the covariance of one example's gradient."""
Line = tuple[float, float]


def job(growth: str, *overrides: str) -> JobSpec:
    text = f"""
apiVersion: batchgrowth.dev/v1alpha1
kind: BatchGrowthJob
metadata: {{name: measured}}
spec:
  workload: {{entrypoint: "a:b", examples: 640}}
  epochs: 20
  batch: {{initial: 32, maximum: 256, shard: 16, growth: {growth}}}
  learningRate: {{initial: "0.1", rule: Constant}}
"""
    return read_manifest(text, overrides).spec


def measured(examples: int, shards: int, update: Update) -> Measured:
    """The sums of an update whose estimates are exactly those numbers."""
    loss, square, trace = update
    return Measured(
        examples=examples,
        shards=shards,
        loss=loss * examples,
        shard_squares=examples * square + shards * trace,
        square=examples * (examples * square + trace),
    )


def follow(
    course: Course, updates: Iterator[Update], seconds: Line = (0.0, 0.001)
) -> Iterator[tuple[Course, BatchDecision | None]]:
    """The course after each update of a training by one worker, and the outcome of each look.

    `seconds` are those of an update, (a, b) for a + b · examples.
    """
    position, memory = Position(), [0.0] * course.memory
    while not course.plan.is_done(position):
        step = course.plan.step_at(position)
        timing = Timing(seconds[0] + seconds[1] * step.examples, step.examples)
        sums = replace(measured(step.examples, step.shards, next(updates)), timing=timing)
        course, decision, memory = course.after(step, sums, memory)
        position = step.after
        assert decision is None or course.is_due(position)
        yield course, decision


def decided(spec: JobSpec, updates: Sequence[Update], seconds: Line = (0.0, 0.001)) -> list[BatchDecision]:
    """What the looks of a training decided; the last of the updates repeats to the end."""
    course = Course(spec)
    endless = iter([*updates, *[updates[-1]] * 1000])
    return [decision for course, decision in follow(course, endless, seconds) if decision is not None]


# --- estimates ----------------------------------------------------------------------------------------------------


def squared(vector: Sequence[float]) -> float:
    return sum(number**2 for number in vector)


def sums_of(gradients: Sequence[Sequence[float]], shard: int) -> Measured:
    """The sums of one update, from the gradient of each example."""
    parts = [gradients[at : at + shard] for at in range(0, len(gradients), shard)]
    totals = [[sum(column) for column in zip(*part, strict=True)] for part in parts]
    return Measured(
        examples=len(gradients),
        shards=len(parts),
        loss=1.0,
        shard_squares=sum(squared(total) / len(part) for total, part in zip(totals, parts, strict=True)),
        square=squared([sum(column) for column in zip(*totals, strict=True)]),
    )


@pytest.mark.parametrize("shard", [1, 4, 5])
def test_the_estimates_of_a_quadratic_are_unbiased(shard: int) -> None:
    """|w - x|² / 2 with x ~ N(m, s²) has G = w - m and tr(Σ) = Σ s²; 200 draws, four standard errors."""
    draw = random.Random(1)
    mean, spread = (0.6, -0.3, 0.1), (0.5, 1.0, 2.0)
    squares, traces = [], []
    for _ in range(200):
        batch = [[draw.gauss(m, s) for m, s in zip(mean, spread, strict=True)] for _ in range(32)]
        examples, _, _, _, square, trace = sums_of(batch, shard).sums()
        squares.append(square / examples)
        traces.append(trace / examples)
    for found, expected in ((squares, squared(mean)), (traces, squared(spread))):
        average = sum(found) / len(found)
        error = math.sqrt(sum((one - average) ** 2 for one in found) / len(found) / (len(found) - 1))
        assert abs(average - expected) < 4 * error


def test_orthogonal_and_equal_gradients() -> None:
    """Over the whole data set n · Δ is n for orthogonal gradients and 1 for equal ones: Yin et al., 2018."""
    orthogonal = [[float(row == column) for column in range(8)] for row in range(8)]
    examples, _, _, _, square, trace = sums_of(orthogonal, 1).sums()
    assert math.isclose(1.0, (trace + square) / examples)  # the mean square of one gradient
    assert math.isclose(0.0, square, abs_tol=1e-12)  # no direction in common

    examples, _, _, _, square, trace = sums_of([[1.0, 2.0]] * 8, 2).sums()
    assert (square / examples, trace / examples) == (5.0, 0.0)


@pytest.mark.fault("D16")
@pytest.mark.parametrize(
    "one",
    [
        Measured(examples=4, shards=1, loss=2.0, shard_squares=1.0, square=1.0),
        Measured(examples=4, shards=2, loss=2.0, shard_squares=math.inf, square=1.0),
        Measured(examples=4, shards=2, loss=2.0, shard_squares=math.inf, square=math.inf),
    ],
)
def test_noise_that_cannot_be_measured_is_left_out(one: Measured) -> None:
    assert one.sums()[:2] == (4.0, 2.0)
    assert one.sums()[3:] == (0.0, 0.0, 0.0)


# --- decisions ----------------------------------------------------------------------------------------------------

FALLING = [(8.0, 16.0, 64.0)] * 20 + [(2.0, 4.0, 64.0)] * 20 + [(1.0, 1.0, 64.0)]
"""In epochs of 20 updates: the loss falls to an eighth, |G|² to a sixteenth, and the noise stays."""


@pytest.mark.parametrize(
    ("growth", "values", "wanted"),
    [
        ("{type: LossRatio}", [1.0, 4.0, 8.0], [32, 64, 128]),
        ("{type: GradientNorm}", [1.0, 4.0, 16.0], [32, 64, 128]),
        ("{type: NoiseScale}", [4.0, 16.0, 64.0], [32, 32, 64]),
        ("{type: NoiseScale, noiseScale: {multiple: '4'}}", [4.0, 16.0, 64.0], [32, 64, 128]),
        ("{type: GradientDiversity, gradientDiversity: {share: '4'}}", [5.0, 17.0, 65.0], [32, 64, 128]),
        ("{type: Cabs}", [0.8, 3.2, 6.4], [32, 32, 32]),
        ("{type: LossAndGradient, lossAndGradient: {lossWeight: '3'}}", [1.0, 42 / 12, 42 / 6], [32, 64, 128]),
    ],
)
def test_table(growth: str, values: list[float], wanted: list[int]) -> None:
    """Values in closed form, and the batch that follows: at most twice as large after each look."""
    found = decided(job(growth), FALLING)[:3]
    assert [decision.wanted for decision in found] == wanted
    if "LossAndGradient" in growth:  # its gradient is that of a batch, with the batch's noise: 16 + 64/32 and so on
        values = [1.0, (24 + 18) / (6 + 6), (24 + 18) / (3 + 1 + 64 / 64)]
    assert values == pytest.approx([decision.value for decision in found])


@pytest.mark.parametrize("name", MEASURED)
def test_contract(name: str) -> None:
    """A rule is asked once an epoch, never at the end, and decides nothing while nothing changes at the start."""
    entry = GROWTH[name]
    block = f", {entry.block_name}: {dict(entry.example)}" if entry.block else ""
    course = Course(job(f"{{type: {name}{block}}}"))
    assert course.is_measured
    found = decided(course.spec, [(1.0, 100.0, 100.0)])
    assert len(found) == 19
    assert all(decision.value > 0 for decision in found)
    assert all(decision.wanted == 32 for decision in found)


UPDATES = st.lists(
    st.tuples(
        st.sampled_from([1e-30, 0.5, 2.0, 1e30]), st.floats(-1e3, 1e3), st.sampled_from([0.0, 1.0, 1e4, 1e38, math.nan])
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.fault("A33", "D16")
@settings(deadline=None)
@given(
    st.sampled_from(MEASURED), UPDATES, st.booleans(), st.sampled_from(["Constant", "DecayPastMaximum"]),
    st.sampled_from(["", ", everyUpdates: 1", ", everyUpdates: 7"]), st.sampled_from(["0", "0.9"]),
)  # fmt: skip
def test_whatever_is_measured_the_batch_stays_within_its_bounds(
    name: str, updates: list[Update], may_shrink: bool, rate: str, every: str, smoothing: str
) -> None:
    looks = f"{{smoothing: '{smoothing}', mayShrink: {str(may_shrink).lower()}{every}}}"
    first = Course(job(f"{{type: {name}, looks: {looks}}}", f"learningRate.rule={rate}", "epochs=3"))
    endless = iter([*updates, *[updates[-1]] * 1000])
    before, followed = 32, list(follow(first, endless))
    for _, decision in followed:
        if decision is None:
            continue
        now = decision.wanted
        assert now % 16 == 0 or now == 256
        assert now >= (32 if may_shrink else before)
        assert before / 2 - 8 <= now <= before * 2 + 8
        assert now <= 256 or rate == "DecayPastMaximum"
        before = now
    course = followed[-1][0]
    assert all(0 < stage.batch_size <= 256 for stage in course.plan.stages)
    assert course.plan == make_plan(course.spec, course.decisions)
    assert [sum(_examples(course))] == [640 * 3]


def _examples(course: Course) -> Iterator[int]:
    position = Position()
    while not course.plan.is_done(position):
        step = course.plan.step_at(position)
        position = step.after
        yield step.examples


@pytest.mark.fault("D16")
def test_what_cannot_be_measured_grows_to_the_maximum_and_never_lowers_the_rate() -> None:
    found = decided(job("{type: NoiseScale}", "learningRate.rule=DecayPastMaximum"), [(1.0, -1.0, 5.0)])
    assert [decision.wanted for decision in found[:4]] == [64, 128, 256, 256]
    assert all(math.isinf(decision.value) for decision in found)


def test_a_list_of_stages_labels_also_those_that_no_measurement_decided() -> None:
    *_, (course, _) = follow(Course(job("{type: NoiseScale}")), itertools.repeat((1.0, -1.0, 5.0)))
    first, second, *_ = plan_list(course).split("\n\n")
    names = ["stage", "epochs", "batch", "learning", "workers", "updates", "examples"]
    assert [line.split()[0] for line in first.splitlines()] == names
    assert [line.split()[0] for line in second.splitlines()] == [*names, course.quantity.split()[0]]


@pytest.mark.fault("D16")
def test_a_first_gradient_below_its_noise_is_no_reference() -> None:
    """Its mean goes on until it is above 0; a negative one would make each later ratio negative, and never grow."""
    epochs = [(1.0, -1.0, 64.0)] * 20 + [(1.0, 3.0, 64.0)] * 10 + [(1.0, 1.0, 64.0)] * 10 + [(1.0, 0.25, 64.0)] * 10
    found = decided(job("{type: GradientNorm}"), epochs)[:4]
    assert [decision.value for decision in found] == pytest.approx([math.inf, 1 / 3, 1.0, 4.0])
    assert [decision.wanted for decision in found] == [64, 64, 64, 128]


def test_a_value_past_the_maximum_lowers_the_rate() -> None:
    spec = job("{type: LossRatio}", "learningRate.rule=DecayPastMaximum")
    *_, (course, _) = follow(Course(spec), iter([(1.0, 1.0, 1.0)] * 20 + [(0.0625, 1.0, 1.0)] * 400))
    assert [stage.wanted for stage in course.plan.stages] == [32, 64, 128, 256, 512]
    assert [stage.learning_rate for stage in course.plan.stages] == [0.1, 0.1, 0.1, 0.1, 0.05]


def test_a_look_at_the_end_of_every_third_epoch() -> None:
    spec = job("{type: LossRatio, looks: {everyEpochs: 3}}")
    assert [one.update for one in decided(spec, [(1.0, 1.0, 1.0)])] == [60, 120, 180, 240, 300, 360]


def test_a_trifle_changes_nothing() -> None:
    assert [decision.wanted for decision in decided(job("{type: LossRatio}"), [(1.0, 1, 1), (0.81, 1, 1)])] == [32] * 19
    looks = "looks: {leastChange: '1'}"
    close = decided(job(f"{{type: LossRatio, {looks}}}", "batch.shard=8"), [(1.0, 1, 1), (0.81, 1, 1)])
    assert close[-1].wanted == 40


def test_smoothing_keeps_a_share_of_the_earlier_sums() -> None:
    spec = job("{type: LossRatio, looks: {smoothing: '0.5'}}")
    values = [decision.value for decision in decided(spec, [(4.0, 1.0, 1.0)] * 20 + [(1.0, 1.0, 1.0)])]
    assert pytest.approx(values[:2]) == [1.0, 4.0 / ((0.5 * 4 + 1) / 1.5)]


@pytest.mark.parametrize(("seconds", "wanted"), [((1.0, 0.0), [64, 128, 256, 256]), ((0.0, 0.01), [32] * 4)])
def test_goodput_grows_if_updates_cost_by_number_and_stays_if_by_examples(seconds: Line, wanted: list[int]) -> None:
    """The short batch at the end of an epoch is the second load, without which a and b cannot be told apart."""
    spec = job("{type: Goodput}", "workload.examples=648")
    found = decided(spec, [(1.0, 1.0, 10_000.0)], seconds)
    assert [decision.wanted for decision in found[:4]] == wanted
    assert 32 / (seconds[0] + seconds[1] * 32) == pytest.approx(found[0].value)


def test_without_a_clock_nothing_of_it_is_remembered() -> None:
    assert Course(job("{type: NoiseScale}")).memory + 5 == Course(job("{type: Goodput}")).memory


def test_a_batch_that_may_shrink_does() -> None:
    updates = [(8.0, 1.0, 1.0)] * 20 + [(1.0, 1.0, 1.0)] * 30 + [(8.0, 1.0, 1.0)]
    found = [one.wanted for one in decided(job("{type: LossRatio, looks: {mayShrink: true}}"), updates)]
    assert found[:3] == [32, 64, 128]
    assert found[-1] == 32


@pytest.mark.parametrize("asked", [87.5, 88.0, 1000.0])
def test_whole_shards_shrink_no_batch_that_may_not(asked: float) -> None:
    """The maximum is no whole number of shards, so the nearest one is smaller than the batch."""
    course = Course(job("{type: LossRatio}", "batch.maximum=70", "batch.shard=64", "learningRate.rule=Linear"))
    assert course.bounded(asked, 70) == 70


def test_a_rule_that_asks_for_the_present_batch_changes_nothing() -> None:
    looks = "looks: {leastChange: '1', mayShrink: true}"
    course = Course(job(f"{{type: LossRatio, {looks}}}", "batch.initial=20", "batch.shard=8"))
    assert [course.bounded(asked, 20) for asked in (20.0, 21.0)] == [20, 24]


def test_a_course_takes_at_most_256_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchgrowth.growth_decisions.MOST_DECISIONS", 2)
    found = decided(job("{type: NoiseScale}"), [(1.0, -1.0, 5.0)])
    assert [decision.wanted for decision in found[:4]] == [64, 128, 128, 128]


def test_a_look_waits_for_an_update_that_shows_the_noise() -> None:
    """The last update of an epoch may have one shard; if each since the last look has, the rule is not asked."""
    course = Course(job("{type: NoiseScale, looks: {everyUpdates: 21}}", "workload.examples=648"))
    looked = [decision.update for _, decision in follow(course, iter([(1.0, 1.0, 1.0)] * 999)) if decision]
    assert 21 not in looked or 42 in looked
    one = Course(job("{type: NoiseScale, looks: {everyUpdates: 1}}", "workload.examples=648"))
    looked = [decision.update for _, decision in follow(one, iter([(1.0, 1.0, 1.0)] * 999)) if decision]
    assert 21 not in looked  # 648 is 20 times 32 and 8
    assert {20, 22} <= set(looked)


def test_known_decisions_stand() -> None:
    course = Course(job("{type: LossRatio}"), [BatchDecision(20, 64, 2.0)])
    assert course is course.joined_by(BatchDecision(20, 128, 4.0))
    assert course is course.joined_by(BatchDecision(30, 64, 2.1))
    grown = course.joined_by(BatchDecision(30, 128, 4.0))
    assert (BatchDecision(20, 64, 2.0), BatchDecision(30, 128, 4.0)) == grown.decisions


def test_a_plan_that_was_made_is_used_until_something_is_decided() -> None:
    spec = job("{type: LossRatio}")
    made = make_plan(spec)
    assert made is Course(spec, plan=made).plan
    decided_once = [BatchDecision(20, 64, 2.0)]
    assert make_plan(spec, decided_once) == Course(spec, decided_once, plan=made).plan


def test_declared_decisions_make_the_same_plan() -> None:
    """Also where the batch shrinks from its maximum, at which a batch that only grows would stay."""
    decisions = (
        BatchDecision(25, 64, 2.0),
        BatchDecision(40, 256, 9.0),
        BatchDecision(45, 128, 3.0),
        BatchDecision(51, 32, 1.0),
    )
    steps = ", ".join(f"{{update: {one.update}, batchSize: {one.wanted}}}" for one in decisions)
    declared = make_plan(job(f"{{type: Milestones, milestones: {{steps: [{steps}]}}}}"))
    assert make_plan(job("{type: LossRatio}"), decisions) == declared
    assert [stage.batch_size for stage in declared.stages] == [32, 64, 256, 128, 32]


class Counting:
    """A rule that asks for as many more examples as it has been asked before."""

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def value(self, look: Look) -> float:
        look.memory[:] = [*look.memory, 1.0] if self.numbers != len(look.memory) else [look.memory[0] + 1]
        return look.memory[0]

    def wanted(self, look: Look, value: float) -> float:
        return look.initial + 16 * value


def test_a_rule_remembers_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job("{type: Custom, custom: {entrypoint: 'a:b', memory: 1}, looks: {leastChange: '1'}}")
    monkeypatch.setattr(Course, "rule", Counting(1))
    assert [(one.value, one.wanted) for one in decided(spec, [(1.0, 1.0, 1.0)])[:3]] == [(1, 48), (2, 64), (3, 80)]
    monkeypatch.setattr(Course, "rule", Counting(2))
    with pytest.raises(ValueError, match="memory has 2 numbers; keep 1"):
        decided(spec, [(1.0, 1.0, 1.0)])


def test_a_function_of_the_users_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Course, "rule", CustomRule(lambda look: 2 * look.wanted + int(look.now.loss)))
    found = decided(job("{type: Custom, custom: {entrypoint: 'a:b'}}"), [(1.0, 1.0, 1.0)])
    assert [(one.value, one.wanted) for one in found[:3]] == [(65.0, 64), (129.0, 128), (257.0, 256)]


def test_a_declared_job_has_no_course_to_follow() -> None:
    course = Course(job("{type: Constant}"))
    assert not course.is_measured
    assert not course.needs_noise


def test_the_plan_of_a_measured_job_follows_its_decisions() -> None:
    spec = job("{type: NoiseScale}")
    assert [(stage.first_update, stage.batch_size) for stage in make_plan(spec).stages] == [(0, 32)]
    decisions: list[Any] = [BatchDecision(25, 64, 2.0), BatchDecision(40, 512, 9.0)]
    stages = make_plan(spec, decisions).stages
    assert [(stage.first_update, stage.batch_size) for stage in stages] == [(0, 32), (25, 64), (40, 256)]
    assert [stage.wanted for stage in stages] == [32, 64, 512]


# --- forecasts ----------------------------------------------------------------------------------------------------

WORKERS = ("workers={examplesPerWorker: 32, maximum: 4}",)
DOUBLED = BatchDecision(20, 64, 2.0)


def outcomes(*asked: float) -> list[BatchDecision]:
    """Looks at the ends of the second and the third epoch, or at that of the third alone, that kept 64 examples."""
    return [
        BatchDecision(update, 64, one / 32, one) for update, one in zip((30, 40)[-len(asked) :], asked, strict=True)
    ]


@pytest.mark.parametrize(
    ("asked", "batch", "workers"),
    [
        ((64, 64), None, None),
        ((50, 75), 112, 3),  # 75 · 75 / 50, in whole shards
        ((64, 80), 96, 3),
        ((64, 65), None, None),  # below leastChange
        ((64, 1000), 128, 4),  # at most mostChange
        ((1e-300, 1e300), 128, 4),
        ((1000,), 128, 4),  # a single look: as it is, the rest of what mostChange held back
        ((70,), None, None),
        ((80, 64), None, None),  # the batch never shrinks by default
        ((math.inf, 64), None, None),
        ((64, math.inf), None, None),
        ((64, math.nan), None, None),
        ((-64, 128), None, None),
        ((64, -128), None, None),
        ((0, 128), None, None),
    ],
)
def test_a_forecast_continues_the_trend(asked: tuple[float, ...], batch: int | None, workers: int | None) -> None:
    course = Course(job("{type: LossRatio}", *WORKERS), [DOUBLED])
    found = expected_batch_of(course.plan, expected_plan(course, outcomes(*asked)))
    ahead = ExpectedBatch(update=50, batch_size=batch, workers=workers) if batch and workers else None
    assert ahead == found


@pytest.mark.parametrize(
    ("growth", "overrides", "decided", "asked"),
    [
        ("{type: LossRatio}", (), 256, (256, 512)),  # at batch.maximum
        ("{type: LossRatio}", ("learningRate.rule=DecayPastMaximum",), 256, (256, 512)),
        ("{type: LossRatio}", ("epochs=4",), 64, (64, 128)),  # its next look would be at the end
        ("{type: LossRatio, looks: {everyUpdates: 170}}", (), 64, (64, 128)),
    ],
)
def test_nothing_is_forecast_if_nothing_can_change(
    growth: str, overrides: tuple[str, ...], decided: int, asked: tuple[float, ...]
) -> None:
    course = Course(job(growth, *overrides), [BatchDecision(20, decided, 2.0)])
    assert course.plan is expected_plan(course, outcomes(*asked))


def test_a_batch_may_be_forecast_to_shrink() -> None:
    course = Course(job("{type: LossRatio, looks: {mayShrink: true, everyUpdates: 10}}", *WORKERS), [DOUBLED])
    ahead = expected_plan(course, outcomes(96, 64))
    assert ExpectedBatch(update=50, batch_size=48, workers=1) == expected_batch_of(course.plan, ahead)


@pytest.mark.parametrize("factor", [1.05, 1.3, 1.7, 2.5])
def test_a_steady_trend_is_forecast_exactly(factor: float) -> None:
    """The loss falls by one factor from look to look; every forecast from the second look on comes true."""
    spec = job("{type: LossRatio, looks: {everyUpdates: 5, mostChange: '4'}}")
    looks, ahead = list[BatchDecision](), make_plan(spec)
    losses = ((factor ** -(update // 5), 1.0, 1.0) for update in range(401))
    for course, decision in follow(Course(spec), losses):
        if decision is None:
            continue
        looks = [*looks[-1:], decision]
        if decision.update > 10:
            assert ahead.stage_at(decision.update).batch_size == course.plan.stage_at(decision.update).batch_size
        ahead = expected_plan(course, looks)
    assert len(ahead.stages) > 2
