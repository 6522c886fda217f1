"""Whether a training can go on with other settings: by the updates that follow from them, not by their names."""

from typing import Any

import pytest
from batchgrowth.growth_decisions import Course
from batchgrowth.plan import BatchDecision, make_plan
from batchgrowth.position import Position
from batchgrowth.same_updates import what_differs
from batchgrowth.spec import mathematics

pytestmark = pytest.mark.fault("N05")

DONE = 4
"""Epochs of the small job, which has 90 examples and doubles its batch from 8 to 32 and more, each epoch."""
CONSTANT = ("batch.growth={type: Constant}",)
COSINE = (*CONSTANT, "learningRate.schedule={type: Cosine}")
COSINE_OF_4 = (*CONSTANT, "learningRate.schedule={type: Cosine, cosine: {epochs: 4, finalFactor: '0.1'}}")
INSTEAD = (
    "batch.growth={type: InsteadOfDecay}",
    "learningRate={initial: '0.05', rule: Linear}",
    "learningRate.schedule={type: Cosine}",
)
MEASURED = ("batch.growth={type: LossRatio, looks: {everyEpochs: 2}}",)
NO_LOOKS = ("batch.growth={type: LossRatio}",)
ODD_LOOKS = ("batch.growth={type: LossRatio, looks: {everyEpochs: 3}}",)
STOPS = (*CONSTANT, "evaluation.stopEarly={metric: loss, mode: Minimize, patience: 1}")
GAINS = (*ODD_LOOKS, "learningRate={initial: '0.05', rule: AdaScale}")
DELAYED = (*CONSTANT, "exchange={type: Delayed, delayed: {updates: 4}}")
WARM = (*CONSTANT, "learningRate.warmup={updates: 20}")


def differs(job: Any, before: tuple[str, ...], now: tuple[str, ...], epoch: int, decisions: Any = ()) -> str:
    """What differs after that many epochs between the small job with the one and with the other settings."""
    there = job(*before)
    plan = make_plan(there.spec, decisions)
    position = next(
        plan.position_at(update) for update in range(plan.updates + 1) if plan.position_at(update).epoch == epoch
    )
    return what_differs(mathematics(there.spec), job(*now).spec, position, decisions)


@pytest.mark.parametrize(
    ("before", "now", "epoch"),
    [
        ((), (), 2),
        ((), ("epochs=40",), DONE),
        ((), ("epochs=3",), 2),
        (COSINE, (*COSINE, "epochs=40"), 0),
        (COSINE_OF_4, (*COSINE_OF_4, "epochs=40"), DONE),
        (WARM, (*WARM, "epochs=40"), DONE),
        (CONSTANT, (*CONSTANT, "learningRate.warmup={updates: 1}"), 2),
        ((), ("batch.maximum=64",), 2),
        (MEASURED, (*MEASURED, "epochs=40"), 3),
        (NO_LOOKS, ("batch.growth={type: LossRatio, looks: {}}",), 3),
        (NO_LOOKS, ("batch.growth={type: LossRatio, looks: {everyEpochs: 1, smoothing: '0.0'}}",), 3),
        (ODD_LOOKS, (*ODD_LOOKS, "epochs=40"), DONE),
        (STOPS, (*STOPS, "epochs=40"), DONE),
        (GAINS, (*GAINS, "epochs=40"), DONE),
        (DELAYED, (*DELAYED, "epochs=40"), 2),
        (DELAYED, (*DELAYED, "learningRate.warmup={updates: 1}"), DONE),
        (CONSTANT, (*CONSTANT, "epochs=40", "exchange={type: LocalSGD}"), 0),
    ],
)
def test_what_is_done_is_the_same(small_job: Any, before: Any, now: Any, epoch: int) -> None:
    if "LocalSGD" in str(now):
        before = (*before, "exchange={type: LocalSGD}")
    assert differs(small_job, before, now, epoch) == ""


@pytest.mark.parametrize(
    ("before", "now", "epoch", "expected"),
    [
        ((), ("seed=4",), 1, "seed: 3 there, 4 here"),
        ((), ("epochs=40", "optimizer.sgd.momentum=0.8"), 1, "optimizer.sgd.momentum: \"0.9\" there, \"0.8\" here"),
        ((), ("batch.shard=8",), 1, "batch.shard: 4 there, 8 here"),
        ((), ("epochs=1",), 2, "2 epochs are done, and spec.epochs is 1"),
        (COSINE, (*COSINE, "epochs=40"), 2, "update 13 has learning rate 0.0426777 there, 0.0499229 here"),
        (INSTEAD, (*INSTEAD, "epochs=40"), DONE, "update "),
        ((), ("batch.growth.geometric.factor=3",), 2, "update 13 has 16 examples there, 24 here"),
        (WARM, (*CONSTANT, "learningRate.warmup={updates: 30}"), 2, "update 1 has learning rate 0.0025 there"),
        (WARM, CONSTANT, 2, "update 1 has learning rate 0.0025 there, 0.05 here"),
        (MEASURED, (*MEASURED, "epochs=40"), DONE, "the growth looks at the training after update "),
        (MEASURED, ("batch.growth={type: LossRatio, looks: {everyEpochs: 1}}",), 2, "batch.growth.looks.everyEpochs: "),
        (NO_LOOKS, ("batch.growth={type: LossRatio, looks: {everyUpdates: 9}}",), 2, "batch.growth.looks.everyEpochs"),
        (
            (*STOPS, "evaluation.everyEpochs=3"), (*STOPS, "evaluation.everyEpochs=3", "epochs=40"), DONE,
            "stopEarly judges the evaluation after epoch 4, which is only due at the end",
        ),
        (DELAYED, (*DELAYED, "epochs=3"), 3, "with exchange Delayed the gradient of update 37 is computed already, or"),
        (
            DELAYED, (*DELAYED, "batch={initial: 8, shard: 4, maximum: 16, growth: {type: Milestones, milestones: "
            "{steps: [{update: 25, batchSize: 16}]}}}"), 2, "with exchange Delayed the gradient of update 26 is",
        ),
        (
            (*CONSTANT, "exchange={type: Delayed}"), (*CONSTANT, "exchange={type: Delayed}", "epochs=40"), DONE,
            "with exchange Delayed an end has no gradients for the updates after it",
        ),
    ],
)  # fmt: skip
def test_what_is_done_would_be_different(small_job: Any, before: Any, now: Any, epoch: int, expected: str) -> None:
    assert expected == differs(small_job, before, now, epoch)[: len(expected)]


def test_decisions_that_were_measured_stay(small_job: Any) -> None:
    spec = small_job(*MEASURED).spec
    decisions = (BatchDecision(24, 16, 2.0),)
    plan = Course(spec, decisions).plan

    assert what_differs(mathematics(spec), small_job(*MEASURED, "epochs=9").spec, plan.position_at(30), decisions) == ""


def test_a_position_that_no_plan_has_is_no_continuation(small_job: Any) -> None:
    before = mathematics(small_job().spec)

    assert "is not at epoch 1 after update 5" in what_differs(before, small_job("epochs=9").spec, Position(5, 1, 3))


def test_settings_that_no_version_knows_are_those_of_another_job(small_job: Any) -> None:
    before = mathematics(small_job().spec) | {"epochs": "many"}

    assert what_differs(before, small_job().spec, Position()) == 'epochs: "many" there, 4 here'


def test_a_plan_that_cannot_be_made_is_named(small_job: Any) -> None:
    before = mathematics(small_job(*WARM).spec)

    assert "warmup.updates: 20" in what_differs(before, small_job(*WARM, "epochs=1").spec, Position())


def test_initial_weights_are_told_apart_by_their_digest_wherever_they_lie(small_job: Any) -> None:
    def known(path: str, digit: str) -> dict[str, object]:
        return mathematics(small_job(f"initialWeights={{path: {path}, sha256: '{digit * 64}'}}").spec)

    assert known("here", "a") == known("there", "a")
    assert known("here", "a") != known("here", "b")
