"""Reports that no training of the job can make: code of the workload has the right to write them."""

import copy
import json
from dataclasses import fields
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.contract.progress import LARGEST_START, Progress
from batchgrowth.contract.status import REASONS, JobStatus
from batchgrowth_operator.seen.observed import timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

STOP = {"metric": "loss", "mode": "Minimize", "patience": 3}
FIXTURE_IS_A_FUNCTION = [HealthCheck.function_scoped_fixture]


def write(world: Any, **values: Any) -> Any:
    """The report with these values in place of its own, whatever JSON makes of them."""
    data = world.child("ConfigMap", "digits-progress")["data"]
    data[names.PROGRESS_KEY] = json.dumps(json.loads(data[names.PROGRESS_KEY]) | values)
    return world


def back(**values: Any) -> dict[str, Any]:
    """What a report says when training went back from update 90 to update 40."""
    return {"times": 1, "workers": ["w-1"], "cause": "w-1 differs", "reached": 90, "update": 40} | values


@pytest.mark.parametrize(
    ("evaluation", "epoch"),
    [
        ({}, 10),  # the job asks for no early end
        ({"stopEarly": STOP}, 2),  # before its patience can have ended
        ({"stopEarly": STOP}, 30),  # at its last epoch
        ({"stopEarly": STOP}, -5),
        ({"stopEarly": STOP, "everyEpochs": 4}, 14),  # without an evaluation
    ],
)
def test_an_early_end_that_cannot_be_is_not_used(training_world: Any, evaluation: dict[str, Any], epoch: int) -> None:
    world = training_world(evaluation=evaluation)
    write(world.report(340), updates=340, ended_at_epoch=epoch).wait(6).settle()
    assert world.condition("Stalled") == ("Unknown", "ReportRefused")
    assert world.status["stages"] == 6


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"update": -1}, "progress.update: -1; the plan allows 0 to 460"),
        ({"update": 461}, "progress.update: 461; the plan allows 0 to 460"),
        ({"update": float("nan")}, "progress.update: nan; give a valid integer"),
        ({"epoch": float("inf")}, "progress.epoch: inf; give a finite number"),
        ({"updates": 461}, "progress.updates: 461; the plan allows 460"),
        ({"start": LARGEST_START}, "progress.start: 9.0072e+15; the plan allows 0 to 9007199254740991"),
        ({"checkpoint_update": 10**30}, "progress.checkpoint_update: 1e+30; the plan allows 0 to 460"),
        ({"seconds_per_update": -0.5}, "progress.seconds_per_update: -0.5; the plan allows 0 to 2147483647"),
        ({"crews": {"0": -1}}, "progress.crews.0: -1; the plan allows 0 to 2147483647"),
        ({"decisions": [[20, 64, 1.0]]}, "progress.decisions: not those of a training of this job"),
        ({"weights_sha256": "ab"}, "progress.weights_sha256: not the 64 hexadecimal digits of a SHA-256"),
        ({"loss": "x" * 5000}, "progress.loss: 'xxxx"),
        ({"differing": {"w": 3}}, "progress.differing.w: 3; give a valid string"),
        ({"went_back": {"times": 1}}, "progress.went_back.workers: missing; give every field of a report"),
        ({"went_back": back(times=2**31)}, "progress.went_back.times: 2.14748e+09; the plan allows 0 to 2147483647"),
        ({"went_back": back(reached=-1)}, "progress.went_back.reached: -1; the plan allows 0 to 9007199254740992"),
        ({"went_back": back(update=91)}, "progress.went_back.update: 91; the plan allows 0 to 90"),
    ],
)
def test_it_is_not_used_and_the_field_is_named(training_world: Any, values: dict[str, Any], message: str) -> None:
    world = training_world()
    before = copy.deepcopy(world.status["trainerStatus"])
    write(world.report(300), **values).wait(6).settle()

    stalled = next(one for one in world.status["conditions"] if one["type"] == "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("Unknown", "ReportRefused")
    assert stalled["message"].startswith(f"The trainer's report is not used: {message}")
    assert before == world.status["trainerStatus"]
    assert [event.type for event in world.events if event.reason == "ReportRefused"] == ["Warning"]

    world.report(310).wait(6).settle()
    assert world.condition("Stalled") == ("False", "ProgressSeen")


def test_the_start_after_the_one_with_the_largest_number_fits_into_the_status(training_world: Any) -> None:
    world = training_world()
    world.report(300, start=LARGEST_START - 1).wait(6).settle()
    for stored in (LARGEST_START - 1, LARGEST_START):  # the second by an earlier operator
        world.status["trainerStatus"] |= {"start": stored, "lastUpdatedTime": timestamp(world.now)}
        world.trainer["status"] = {"startTime": timestamp(world.now), "active": 0}
        world.settle()
        assert world.status["trainerStatus"]["start"] == LARGEST_START
        assert JobStatus.model_validate(world.status).trainer_status is not None


def test_a_refused_report_holds_up_nothing(training_world: Any) -> None:
    world = training_world(ttlSecondsAfterFinished=30, activeDeadlineSeconds=600)
    write(world, update=-1).edit(suspend=True).settle()
    assert world.trainer["spec"]["suspend"]
    assert world.condition("Stalled") == ("False", "ProgressSeen"), "what a suspended job reports does not matter"

    world.edit(suspend=False).settle()
    world.wait(601).settle()
    assert world.condition("Succeeded") == ("False", "DeadlineExceeded")
    world.trainer_ends("Failed").wait(31).settle()
    assert world.job_deleted


NUMBERS = st.one_of(
    st.integers(), st.integers(-3, 500), st.floats(), st.sampled_from([2**31, 2**53, 2**63, 10**400, -(10**400), 1e308])
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=8,
)
NAMES = st.sampled_from([one.name for one in fields(Progress)])
REPORTS = st.dictionaries(NAMES, st.one_of(NUMBERS, JSON), max_size=4)
DECISIONS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=4)


@pytest.mark.fault("E02")
@settings(max_examples=150, deadline=None, suppress_health_check=FIXTURE_IS_A_FUNCTION)
@given(st.booleans(), st.lists(REPORTS, min_size=1, max_size=3), DECISIONS, st.booleans())
def test_whatever_is_reported_the_job_can_be_reconciled(
    training_world: Any,
    measured_world: Any,
    is_measured: bool,
    reports: list[dict[str, Any]],
    decisions: list[Any],
    suspend: bool,
) -> None:
    """Every pass ends, at rest, with a status that can be stored, and workers within the job's bounds."""
    world = (measured_world if is_measured else training_world)()
    for given_values in reports:
        values = given_values | ({"decisions": decisions} if is_measured and decisions else {})
        write(world, **values).wait(7).settle()
        status = JobStatus.model_validate(world.status)
        assert all(one.reason in REASONS[one.type] and len(one.message) <= 1024 for one in status.conditions)
        assert 0 <= world.deployment["spec"]["replicas"] <= world.job["spec"]["workers"]["maximum"]
        json.dumps(world.status, allow_nan=False)
    world.edit(suspend=suspend).settle()
    assert suspend == world.trainer["spec"]["suspend"]


@settings(max_examples=100, deadline=None, suppress_health_check=FIXTURE_IS_A_FUNCTION)
@given(st.one_of(st.text(), JSON.map(json.dumps)))
def test_any_text_may_stand_in_the_config_map(training_world: Any, text: str) -> None:
    world = training_world()
    world.child("ConfigMap", "digits-progress")["data"] = {names.PROGRESS_KEY: text}
    world.wait(7).settle()
    JobStatus.model_validate(world.status)
    assert world.deployment["spec"]["replicas"] == 1


@pytest.mark.fault("B14")
def test_a_lost_config_map_numbers_the_next_start(training_world: Any) -> None:
    """The next trainer finds no report there, but the number that its own must exceed."""
    world = training_world()
    ref = next(ref for ref in world.children if ref.name == "digits-progress" and ref.kind == "ConfigMap")
    assert names.LAST_START not in world.children[ref]["metadata"]["annotations"], "the first start needs none"
    world.report(20, start=4).wait(6).settle()
    assert world.children[ref]["metadata"]["annotations"][names.LAST_START] == "4"
    del world.children[ref]
    world.settle()
    assert world.children[ref]["metadata"]["annotations"][names.LAST_START] == "4"
