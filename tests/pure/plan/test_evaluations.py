"""When evaluations are due, which is the best, and when stopEarly ends a job."""

import math
from pathlib import Path
from typing import Any

import pytest
from batchgrowth import Position, load_manifest, make_plan, mathematics
from batchgrowth.errors import SpecError
from batchgrowth.evaluations import BestEvaluation, early_end, evaluation_due
from batchgrowth.growth_decisions import Course
from batchgrowth.spec.training import KeepBest, StopEarly, WatchedMetric
from hypothesis import given
from hypothesis import strategies as st

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"
LESS = KeepBest(metric="loss", mode="Minimize")
MORE = KeepBest(metric="accuracy", mode="Maximize")
BY_A_TENTH = StopEarly(metric="loss", mode="Minimize", patience=2, minimum_change="0.1")
STOP = "evaluation.stopEarly={metric: loss, mode: Minimize, patience: 2}"


@pytest.mark.parametrize(
    ("position", "evaluated", "due"),
    [
        (Position(0, 0), 0, False),
        (Position(45, 1), 0, False),
        (Position(135, 3), 0, True),
        (Position(136, 3, 32), 0, False),
        (Position(135, 3), 3, False),
        (Position(458, 30), 27, True),
        (Position(458, 30), 30, False),
    ],
)
def test_evaluation_due(position: Position, evaluated: int, due: bool) -> None:
    """At the end of every third epoch, and at the end of the last, once."""
    spec = load_manifest(
        DIGITS, ["evaluation.everyEpochs=4" if position.epoch == 30 else "evaluation.everyEpochs=3"]
    ).spec
    assert due == evaluation_due(spec, make_plan(spec), position, evaluated)


def judged(values: list[float], watched: WatchedMetric) -> BestEvaluation:
    """After an evaluation at the end of each epoch, of ten updates."""
    now = BestEvaluation()
    for epoch, value in enumerate(values, 1):
        now = now.after(Position(10 * epoch, epoch), value, watched)
    return now


@pytest.mark.parametrize(
    ("values", "watched", "epoch", "misses"),
    [
        ([3.0, 2.0, 2.5], LESS, 2, 1),
        ([0.3, 0.2, 0.5], MORE, 3, 0),
        ([2.0, 2.0, 2.0], LESS, 1, 2),  # the first of equals stays
        ([math.nan, 2.0, math.nan], LESS, 2, 1),
        ([math.inf, 0.5, math.inf], MORE, 2, 1),
        ([math.nan, math.inf], LESS, 0, 2),
        ([2.0, 1.95, 1.91], BY_A_TENTH, 1, 2),  # each less than a tenth better than the best
        ([2.0, 1.95, 1.85], BY_A_TENTH, 3, 0),
    ],
)
def test_the_best_and_the_evaluations_since(
    values: list[float], watched: WatchedMetric, epoch: int, misses: int
) -> None:
    now = judged(values, watched)
    assert (len(values), epoch, 10 * epoch, misses) == (now.evaluated, now.epoch, now.update, now.misses)
    assert now.value == values[epoch - 1] if epoch else math.isnan(now.value)


def test_an_evaluation_counts_once() -> None:
    """A recovery repeats it."""
    now = judged([3.0, 2.0, 2.5], LESS)
    assert now is now.after(Position(30, 3), 2.5, LESS)
    assert now is now.after(Position(20, 2), 2.0, LESS)


def spec(digits: str = "epochs=6", *more: str) -> Any:
    return load_manifest(DIGITS, [digits, *more]).spec


@pytest.mark.parametrize(
    ("values", "end"),
    [
        ([2.0, 1.0, 1.0], None),
        ([2.0, 1.0, 1.0, 1.0], 4),
        ([math.nan, math.nan], 2),
        ([6.0, 5.0, 4.0, 3.0, 3.0, 3.0], None),
    ],
)
def test_the_early_end(values: list[float], end: int | None) -> None:
    """None at the last epoch, where training ends anyway."""
    job = spec("epochs=6", STOP)
    assert end == early_end(job, judged(values, job.evaluation.stop_early))
    assert None is early_end(spec(), judged(values, LESS))


@given(epoch=st.integers(1, 11), every=st.integers(1, 4), growth=st.sampled_from(["epochs", "updates"]))
def test_a_plan_that_ends_early_is_the_beginning_of_the_plan(epoch: int, every: int, growth: str) -> None:
    at = f"linear: {{examplesPerUpdate: '2', everyUpdates: {7 * every}}}" if growth == "updates" else ""
    grown = f"batch.growth={{type: Linear, {at}}}" if at else f"batch.growth.geometric.everyEpochs={every}"
    cosine = "learningRate.schedule={type: Cosine, cosine: {}}"
    whole = make_plan(spec("epochs=12", grown, "batch.maximum=100000", cosine))
    cut = whole.until(epoch)
    assert (epoch, True, False) == (cut.epochs, cut.ended_early, whole.ended_early)
    position, taken = Position(), 0
    while not cut.is_done(position):
        step = cut.step_at(position)
        assert whole.step_at(position) == step
        position, taken = step.after, taken + step.examples
    assert Position(cut.updates, epoch, 0) == position == cut.position_at(cut.updates) == cut.position_at(10**9)
    assert cut.examples == taken
    last = cut.stages[-1]
    assert last.learning_rate_to == cut.learning_rate_at(position) > 0
    assert (epoch, cut.updates) == (last.epoch_to, last.first_update + last.updates)


def test_a_course_ends_where_its_plan_does() -> None:
    course = Course(spec("epochs=12"))
    assert course.plan.until(5) == course.ended(5).plan == Course(course.spec, end=5).plan
    assert not course.plan.ended_early


def test_an_early_end_belongs_to_the_mathematics_and_the_best_does_not() -> None:
    without, kept = mathematics(spec()), mathematics(spec("evaluation.keepBest={metric: loss, mode: Minimize}"))
    assert without.keys() == mathematics(spec("evaluation.everyEpochs=2")).keys() == kept.keys()
    asked = {"metric": "loss", "mode": "Minimize", "patience": 2, "minimumChange": "0"}
    assert {"stopEarly": asked, "everyEpochs": 1} == mathematics(spec("epochs=6", STOP))["evaluation"]


def test_a_patience_that_outlasts_the_training_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec\.evaluation\.stopEarly\.patience: 2; give fewer"):
        spec("epochs=6", STOP, "evaluation.everyEpochs=3")
