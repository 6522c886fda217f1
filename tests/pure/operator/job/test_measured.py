"""A measured job: the operator follows the decisions in the trainer's reports."""

import copy
import json
import math
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.contract.status import MOST_HISTORY, JobStatus
from batchgrowth.expected_batch import ExpectedBatch
from batchgrowth.looks import LARGEST_BATCH
from batchgrowth.plan import MOST_DECISIONS
from batchgrowth_operator.job.announcements import measured_value
from batchgrowth_operator.job.conditions import NOT_KEPT
from batchgrowth_operator.seen.observed import Ref
from batchgrowth_operator.settings import Defaults
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MakeWorld = Any
Taken = tuple[int, int, float]
DOUBLINGS: tuple[Taken, ...] = tuple((100 * n, min(128 * 2**n, 16_000), 150.25 * 2**n) for n in range(1, 8))
"""Looks after 100 updates each, of which each doubles the batch: 256, 512, … 8192, 16,000."""
RELEASED = 100
"""Seconds after which the spare workers of these jobs are released: ten start-up times."""
WORKERS = [1, 1, 1, 1, 1, 1, 2, 4]
"""Workers of the stages that follow from them."""


def replicas(world: Any) -> int:
    return int(world.deployment["spec"]["replicas"])


def grow(world: Any, *decisions: Taken, **values: Any) -> Any:
    """The trainer reports the update of its last decision; workers come, and all is settled."""
    world.wait(10).report_decided(decisions[-1][0], *decisions, **values).settle()
    world.wait(5).workers_ready().settle()
    return world


def foreseen(update: int, batch_size: int) -> ExpectedBatch:
    """A forecast whose workers the operator must not believe."""
    return ExpectedBatch(update=update, batch_size=batch_size, workers=1000)


def lose_report(world: Any) -> Any:
    """The ConfigMap is deleted, and the operator makes an empty one."""
    del world.children[Ref("ConfigMap", "digits-progress")]
    world.settle()
    return world


def write_report(world: Any, **values: Any) -> Any:
    """A user's code writes these values into the report."""
    data = world.child("ConfigMap", "digits-progress")["data"]
    data[names.PROGRESS_KEY] = json.dumps(json.loads(data[names.PROGRESS_KEY]) | values)
    return world


def standing(world: Any) -> tuple[Any, ...]:
    """What must not change without a usable report."""
    status = world.status
    return (
        *(copy.deepcopy(status[key]) for key in ("stage", "stages", "batch", "history")),
        status["workers"]["desired"],
        status["trainerStatus"]["update"],
        replicas(world),
    )


def stages_begun(world: Any) -> list[str]:
    return [event.message for event in world.events if event.reason == "StageBegan"]


@pytest.mark.parametrize("forecast", [False, True])
def test_workers_follow_the_decisions(measured_world: MakeWorld, forecast: bool) -> None:
    """From 1 to 2 to 4 while the batch grows to 16,000: requested when a growth is decided, or earlier if forecast."""
    world = measured_world()
    for count, (before, after) in enumerate(pairwise(WORKERS), start=1):
        known, next_batch = DOUBLINGS[: count - 1], DOUBLINGS[count - 1][1]
        ahead = foreseen(100 * count, next_batch) if forecast else None
        world.report_decided(100 * count - 40, *known, forecast=ahead).wait(10).settle()
        assert before == replicas(world)
        world.report_decided(100 * count - 5, *known, forecast=ahead).wait(43).settle()
        assert (after if forecast else before) == replicas(world)
        assert (next_batch if forecast else None) == world.status["batch"].get("next")
        world.wait(7 * forecast).workers_ready().settle()
        world.report_decided(100 * count, *DOUBLINGS[:count]).settle()
        assert after == replicas(world)
        world.wait(7 * (not forecast)).workers_ready().settle()

    assert world.status["batch"] == {"current": 16_000}
    assert (world.status["stage"], world.status["stages"]) == (7, 8)
    assert [record.get("resizeSeconds") for record in world.status["history"]] == [None] * 6 + ["7.000"] * 2
    assert len(stages_begun(world)) == 8


def test_a_wrong_forecast_costs_idle_workers_for_a_while(measured_world: MakeWorld) -> None:
    """They are released ten start-up times after the request, without a further report."""
    world = measured_world()
    world.report_decided(95, forecast=foreseen(100, 16_000)).settle()
    began = world.now
    world.report_decided(100)
    while replicas(world) == 4 and world.now < began + timedelta(seconds=2 * RELEASED):
        world.settle()
        world.wait(world.decide().requeue_after_seconds).step()

    assert (replicas(world), (world.now - began).total_seconds()) == (1, RELEASED)


@pytest.mark.fault("C18")
def test_forecasts_that_flip_do_not_make_workers_flap(measured_world: MakeWorld) -> None:
    """Every other report has a forecast: workers are released once in ten start-up times, and statuses throttled."""
    world, number, period = measured_world(), 100, 4
    requests, statuses = [replicas(world)], 0
    for update in range(number):
        ahead = foreseen(200, 16_000) if update % 2 else None
        decision = world.report_decided(20 + update, seconds_per_update=0.01, forecast=ahead).wait(period).step()
        requests += [replicas(world)] * (replicas(world) != requests[-1])
        statuses += decision.status is not None

    assert set(requests) == {1, 4}
    assert len(requests) <= 2 * number * period / RELEASED + 2
    assert statuses <= number * period / Defaults(image="").report_seconds


def test_fewer_workers_at_most_release_spare_ones_at_once(measured_world: MakeWorld) -> None:
    world = measured_world()
    world.report_decided(95, forecast=foreseen(100, 16_000)).wait(1).settle()

    world.edit(workers={"examplesPerWorker": 4000, "maximum": 2}).settle()

    assert replicas(world) == 2


def test_the_history_shows_what_decided(measured_world: MakeWorld) -> None:
    world = grow(measured_world(), (100, 8000, 8123.456), (200, 16_000, math.inf))

    kept = ("index", "batchSize", "firstUpdate", "measured", "wanted")
    assert [{key: record[key] for key in kept if key in record} for record in world.status["history"]] == [
        {"index": 0, "batchSize": 128, "firstUpdate": 0},
        {"index": 1, "batchSize": 8000, "firstUpdate": 100, "measured": "8123.46"},
        {"index": 2, "batchSize": 16_000, "firstUpdate": 200},
    ]


def test_events_say_what_was_measured(measured_world: MakeWorld) -> None:
    world = measured_world()
    grow(world, (100, 192, 610.2))
    grow(world, (100, 192, 610.2), (200, 12_000, math.inf), (300, 128, -0.0625))
    grow(world, (100, 192, 610.2), (200, 12_000, math.inf), (300, 128, -0.0625), (400, 16_000, 2e12))

    assert stages_begun(world) == [
        "Stage 1 began with batch size 128.",
        "Batch 128 → 192: noise scale 610.",
        "Batch 192 → 12,000: noise scale too large to measure.",
        "Batch 12,000 → 128: noise scale -0.0625.",
        "Batch 128 → 16,000: noise scale 2e+12.",
    ]


def test_a_batch_at_its_maximum(measured_world: MakeWorld) -> None:
    """More is wanted, so the learning rate falls; the record keeps what was wanted."""
    world = grow(measured_world(), (100, 16_000, 20_000.0), (200, 32_000, 30_000.0))

    assert stages_begun(world)[-1] == "Batch stays at 16,000: noise scale 30,000."
    assert [record.get("wanted") for record in world.status["history"]] == [None, None, 32_000]
    before = standing(world)
    assert before == standing(lose_report(world))


@pytest.mark.parametrize(
    ("value", "text"), [(0.03125, "0.0312"), (99.96, "100"), (999.6, "1,000"), (1e9, "1e+09"), (-1e12, "-1e+12")]
)
def test_measured_values_are_short(value: float, text: str) -> None:
    assert text == measured_value(value)


def test_what_is_measured_is_said_at_the_start(make_world: MakeWorld) -> None:
    growth = {"type": "NoiseScale"}
    world = make_world(batch={"initial": 32, "maximum": 512, "shard": 16, "growth": growth})
    world.step()

    message = f"The batch follows the noise scale, from 32 to 512; at most 1,350 updates. {NOT_KEPT}"
    assert message == world.status["conditions"][0]["message"]
    assert (message, "PlanMade") == (world.events[0].message, world.events[0].reason)
    assert world.status["batch"] == {"current": 32}


@pytest.mark.fault("B17")
def test_a_decision_changes_no_child_but_the_number_of_workers(measured_world: MakeWorld) -> None:
    """The trainer runs on: its Job and the ConfigMap with its plan stay byte for byte."""
    world = measured_world()
    before = copy.deepcopy(world.children)

    decision = world.report_decided(700, *DOUBLINGS).step()

    assert [(m["kind"], m["metadata"]["name"]) for m in decision.apply] == [("Deployment", "digits-workers")]
    assert decision.delete == ()
    after = copy.deepcopy(world.children)
    for children, count in ((before, 1), (after, 4)):
        deployment = children[Ref("Deployment", "digits-workers")]
        assert count == deployment["spec"].pop("replicas")
        deployment["metadata"]["annotations"].pop(names.MANIFEST)
        children[Ref("ConfigMap", "digits-progress")].pop("data")
    assert json.dumps(list(before.values())) == json.dumps(list(after.values()))


def test_a_declared_job_ignores_decisions(training_world: MakeWorld) -> None:
    world = training_world()
    before = standing(world)

    write_report(world.report(40), decisions=[[20, 64, 1.0]]).wait(6).settle()
    world.report(10, forecast=foreseen(12, 16_000)).wait(6).settle()

    assert before == standing(world)


@pytest.mark.fault("B02")
def test_an_operator_that_restarts_goes_on(measured_world: MakeWorld) -> None:
    """It has only what is stored; decisions that came while it was down are recorded by its first pass."""
    world = grow(measured_world(), *DOUBLINGS[:6])
    restarted = type(world)(job=world.job, children=world.children, parts=world.parts, now=world.now)
    assert restarted.decide().is_empty

    restarted.wait(10).report_decided(720, *DOUBLINGS).settle()

    assert replicas(restarted) == 4
    assert stages_begun(restarted) == ["Batch 8,192 → 16,000: noise scale 19,232."]


@pytest.mark.fault("B01")
def test_an_operator_may_die_after_any_write(measured_world: MakeWorld) -> None:
    """The pass that sees a decision writes status, workers and events; the next one completes the rest."""
    world = grow(measured_world(), *DOUBLINGS[:6]).report_decided(720, *DOUBLINGS)
    undisturbed = copy.deepcopy(world)
    undisturbed.settle()

    for count in range(len(world.writes(world.decide()))):
        interrupted = copy.deepcopy(world)
        for write in interrupted.writes(interrupted.decide())[:count]:
            write()
        interrupted.settle()
        assert (undisturbed.children, undisturbed.status) == (interrupted.children, interrupted.status)


def test_a_report_that_is_gone_leaves_the_workers(measured_world: MakeWorld) -> None:
    world = grow(measured_world(), *DOUBLINGS)
    before = standing(world)

    assert before == standing(lose_report(world))

    grow(world, *DOUBLINGS, start=1)
    assert before[:5] == standing(world)[:5]


def test_a_resumed_job_gets_the_workers_of_its_stage(measured_world: MakeWorld) -> None:
    """Also if the report is lost while it is suspended."""
    world = grow(measured_world(checkpoint={"volume": {"claimName": "kept"}}), *DOUBLINGS)
    world.edit(suspend=True).settle()
    world.trainer["status"] = {}
    world.settle()
    assert (world.deployment, world.status["workers"]["requested"]) == (None, 0)
    lose_report(world)

    world.edit(suspend=False).settle()

    assert replicas(world) == 4
    world.scheduler_ready().trainer_runs().report_decided(700, *DOUBLINGS, start=1).settle()
    assert (replicas(world), len(world.status["history"])) == (4, 8)


@pytest.mark.fault("B09")
def test_a_stale_report_changes_nothing(measured_world: MakeWorld) -> None:
    world = grow(measured_world(), *DOUBLINGS, start=1)
    before = standing(world)

    world.report_decided(650, *DOUBLINGS[:6], start=1).wait(6).settle()
    assert before == standing(world)

    world.report_decided(900, *DOUBLINGS[:2], start=0).wait(6).settle()
    assert before == standing(world)


def test_a_trainer_that_fell_back_repeats_its_decisions(measured_world: MakeWorld) -> None:
    """Its last checkpoint is older than the last two decisions; the same ones follow, or others."""
    world = grow(measured_world(), *DOUBLINGS)
    world.report_decided(550, *DOUBLINGS[:5], start=1).wait(6).settle()
    assert replicas(world) == 4  # they may soon be wanted again
    world.wait(RELEASED).settle()
    assert (world.status["stage"], world.status["stages"], replicas(world)) == (5, 6, 1)
    before = standing(world)
    assert before == standing(lose_report(world))

    grow(world, *DOUBLINGS[:6], start=1)
    grow(world, *DOUBLINGS[:6], (650, 12_000, 12_345.0), start=1)

    assert [record["index"] for record in world.status["history"]] == [*range(8), 5, 6, 7]
    assert [stages_begun(world)[at] for at in (8, -1)] == [
        "Stage 6 began with batch size 4096.",
        "Batch 8,192 → 12,000: noise scale 12,345.",
    ]
    before = standing(world)
    assert before == standing(lose_report(world))


def test_stages_that_were_decided_otherwise_are_recorded_again(measured_world: MakeWorld) -> None:
    """A trainer lost its checkpoint and came to the same stage by other decisions before it was seen."""
    world = grow(measured_world(), *DOUBLINGS[:3])

    grow(world, DOUBLINGS[0], (150, 1024, 900.0), (300, 2048, 1999.5), start=1)

    assert [record["index"] for record in world.status["history"]] == [0, 1, 2, 3, 2, 3]
    assert [record["firstUpdate"] for record in world.status["history"]][2:] == [200, 300, 150, 300]


@pytest.mark.parametrize("number", [MOST_HISTORY - 1, MOST_HISTORY, MOST_DECISIONS])
def test_more_stages_than_the_history_keeps(measured_world: MakeWorld, number: int) -> None:
    """The newest ones suffice: without the report, the current stage keeps its number, batch and workers."""
    decisions = [(10 * n, 128 + 16 * n, 200.0 + n) for n in range(1, number + 1)]
    world = grow(measured_world(), *decisions[: number // 2])
    grow(world, *decisions)
    before = standing(world)
    assert (number, number + 1, MOST_HISTORY) == (*before[:2], len(before[3]))

    assert before == standing(lose_report(world))


def test_a_decision_that_is_still_ahead(measured_world: MakeWorld) -> None:
    """A report may carry a decision before its update; the workers come ahead, as before a milestone."""
    world = measured_world()
    world.report_decided(80, (100, 16_000, 16_000.0)).wait(6).settle()
    assert (*(world.status[k] for k in ("stage", "stages")), replicas(world)) == (0, 2, 1)
    assert world.status["batch"] == {"current": 128, "next": 16_000, "nextAtEpoch": "0.256"}

    world.report_decided(90, (100, 16_000, 16_000.0)).wait(6).settle()

    assert (world.status["stage"], replicas(world)) == (0, 4)


IMPLAUSIBLE: list[Any] = [
    [[0, 256, 1.0]],
    [[-5, 256, 1.0]],
    [[100, 0, 1.0]],
    [[100, -256, 1.0]],
    [[100, LARGEST_BATCH + 1, 1.0]],
    [[100, 10**30, 1.0]],
    [[10**30, 256, 1.0]],
    [[10**9, 256, 1.0]],
    [[200, 256, 1.0], [100, 512, 1.0]],
    [[100, 256, 1.0], [100, 512, 1.0]],
    [[n, 128 + n % 2, 1.0] for n in range(1, MOST_DECISIONS + 2)],
    [[100, 256]],
    [[100, "256", 1.0]],
    [[100, 256, "x"]],
    [[100, 256, 1.0, 4]],
    [100, 256, 1.0],
    [None],
    "no list",
    {"100": 256},
]


@pytest.mark.parametrize("decisions", IMPLAUSIBLE)
def test_implausible_decisions_are_no_report(measured_world: MakeWorld, decisions: Any) -> None:
    world = grow(measured_world(), *DOUBLINGS)
    before = standing(world)

    write_report(world, update=800, decisions=decisions).wait(6).settle()

    assert before == standing(world)


def test_decisions_that_end_the_training_within_its_warm_up(measured_world: MakeWorld) -> None:
    """Fewer updates are left than the warm-up has, which only a plan without decisions must not have."""
    rate = {"initial": "0.05", "warmup": {"initial": "0.01", "updates": 70_000}}
    world = grow(measured_world(learningRate=rate), *DOUBLINGS)

    assert (world.status["stage"], replicas(world)) == (7, 4)


@pytest.mark.parametrize(
    "values",
    [
        {"update": -1},
        {"update": 10**6},
        {"start": -1},
        {"start": 2**60},
        {"epoch": 1e300},
        {"ready": -3},
        {"checkpoint_update": -1},
        {"crews": {"0": 1e300}},
        {"pauses": {"0": 1e300}},
        {"loss": math.nan},
        {"weights_sha256": "abc"},
    ],
)
def test_numbers_that_no_trainer_reports(measured_world: MakeWorld, values: dict[str, Any]) -> None:
    world = measured_world()
    before = standing(world)

    write_report(world, **({"update": 20, "start": 5} | values)).wait(6).settle()

    assert before == standing(world)


def test_a_stored_history_that_the_operator_did_not_write(measured_world: MakeWorld) -> None:
    """Decisions without an update; the job counts as in its first stage until the next report."""
    world = grow(measured_world(), *DOUBLINGS)
    for record in world.status["history"]:
        del record["firstUpdate"]

    lose_report(world)
    assert (world.status["stage"], world.status["stages"]) == (0, 1)

    grow(world, *DOUBLINGS)
    assert (world.status["stage"], replicas(world)) == (7, 4)


@pytest.mark.fault("B05")
def test_a_status_of_an_earlier_version_is_read(training_world: MakeWorld) -> None:
    """Its stages have no first update; none is recorded twice."""
    world = training_world()
    world.report(440).settle()
    for record in world.status["history"]:
        del record["firstUpdate"]
    before = copy.deepcopy(world.status["history"])

    world.report(455).wait(6).settle()

    assert before == world.status["history"][:5]
    assert [record["index"] for record in world.status["history"]] == [*range(6)]


NUMBERS = st.one_of(st.integers(-10, 1000), st.integers(), st.floats(), st.none(), st.booleans(), st.text(max_size=3))
DECISIONS = st.one_of(
    st.lists(st.tuples(st.integers(-1, 900), st.integers(-1, 20_000), st.one_of(st.none(), st.floats())), max_size=4),
    st.lists(st.lists(NUMBERS, max_size=4), max_size=3),
    NUMBERS,
)
FIELDS = (
    "update",
    "start",
    "epoch",
    "stage",
    "loss",
    "eta_seconds",
    "seconds_per_update",
    "ready",
    "checkpoint_update",
)
FORECASTS = st.fixed_dictionaries(
    {"update": st.integers(-1, 900), "batch_size": st.integers(-1, 20_000), "workers": st.integers(-1, 2000)},
    optional={"due_seconds": NUMBERS},
)
REPORTS = st.fixed_dictionaries(
    {"decisions": DECISIONS},
    optional={
        "forecast": st.one_of(FORECASTS, st.dictionaries(st.sampled_from(["update", "workers"]), NUMBERS), NUMBERS),
        **dict.fromkeys(FIELDS, NUMBERS),
        "crews": st.dictionaries(st.sampled_from("012"), NUMBERS),
        "pauses": st.dictionaries(st.sampled_from("012"), NUMBERS),
        "metrics": st.dictionaries(st.text(max_size=3), NUMBERS),
        "weights_sha256": st.one_of(st.none(), st.text(max_size=64)),
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(REPORTS, min_size=1, max_size=3))
def test_no_report_stops_the_operator(measured_world: MakeWorld, reports: list[dict[str, Any]]) -> None:
    """Whatever is reported, decisions settle, the status is valid, and the workers stay within their bounds."""
    world = measured_world()
    for values in reports:
        write_report(world, **values).wait(6).settle()
        assert JobStatus.model_validate(world.status).to_json() == world.status
        assert 1 <= replicas(world) <= 4


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(128, 16_000)), max_size=12), st.integers(0, 12))
def test_what_is_recorded_is_enough(measured_world: MakeWorld, steps: list[tuple[int, int]], seen: int) -> None:
    """For any decisions, whichever of them the operator saw first, losing the report changes nothing."""
    updates = [10, *(10 + sum(after for after, _ in steps[: n + 1]) for n in range(len(steps)))]
    decisions = [(update, wanted, 5.0) for update, (_, wanted) in zip(updates[1:], steps, strict=True)]
    world = measured_world()
    usable = [d for d in decisions if d[0] <= 250]
    for part in (usable[:seen], usable):
        world.report_decided(part[-1][0] if part else 10, *part).wait(6).settle()
    before = standing(world)

    assert before == standing(lose_report(world))
    assert all(one["firstUpdate"] < other["firstUpdate"] for one, other in pairwise(world.status["history"]))


def test_the_number_of_a_start_may_be_a_time(measured_world: MakeWorld) -> None:
    """The trainer counts its starts by the clock; such a number outlives the year 2038."""
    late, first = (grow(measured_world(), *DOUBLINGS, start=start) for start in (2**33, 1))
    assert replicas(first) == replicas(late) > 1
