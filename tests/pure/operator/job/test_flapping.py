"""Conditions of a job whose pods flap: the first turns are shown at once, then they stay bad; writes are bounded."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import cycle
from typing import Any

import pytest
from batchgrowth_operator.job.status import CALM_SECONDS, FORGOTTEN_AFTER_SECONDS, GOOD, WRITE_SECONDS
from batchgrowth_operator.seen import situation
from batchgrowth_operator.seen.observed import timestamp_ms
from batchgrowth_operator.seen.situation import MOST_TURNS

MakeWorld = Any
WORKERS = {"workers": {"examplesPerWorker": 8, "minimum": 1, "maximum": 40}}
FOUR_AT_ONCE = {"batch": {"initial": 32, "maximum": 32, "shard": 8, "growth": {"type": "Constant"}}, **WORKERS}
"""A job with one stage of four workers."""
UPDATES = 1350
SLOWLY = 50
MINUTE, HOUR = 60, 3600


@pytest.fixture
def four(training_world: MakeWorld) -> Callable[[], Any]:
    """A function that makes a world that trains with four workers, and whose trainer reports no more."""

    def make() -> Any:
        world = training_world(**FOUR_AT_ONCE)
        world.wait(10).workers_ready().report(10, updates=UPDATES, seconds_per_update=2000.0).settle()
        assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")
        return world

    return make


def play(world: Any, levels: Sequence[int], each: float, seconds: float) -> list[float]:
    """The seconds at which the status is written while as many workers are ready, one level after the other.

    A pass is made at each change, and when the one before asks for it.
    """
    began, times = world.now, []
    for level in cycle(levels):
        world.workers_ready(level)
        until = world.now + timedelta(seconds=each)
        while world.now < until:
            decision = world.step()
            if decision.status is not None:
                times.append((world.now - began).total_seconds())
            left = (until - world.now).total_seconds()
            world.wait(min(left, decision.requeue_after_seconds or left))
        if (world.now - began).total_seconds() >= seconds:
            return times
    raise AssertionError("no levels")


def message(world: Any, kind: str) -> str:
    return next(c["message"] for c in world.status["conditions"] if c["type"] == kind)


def most_in_a_minute(times: Sequence[float], since: float) -> int:
    return max(Counter(time // MINUTE for time in times if time >= since).values(), default=0)


@pytest.mark.fault("B29")
@pytest.mark.parametrize(
    ("levels", "each"),
    [
        pytest.param((4, 3), 20, id="one"),
        pytest.param((4, 4, 4, 3), 15, id="lost for a moment"),
        pytest.param((3, 2), 20, id="never all"),
        pytest.param((4, 3, 1, 2, 0, 4, 3), 20, id="several"),
        pytest.param((4, 3), SLOWLY, id="an hour"),
    ],
)
def test_an_hour_of_flapping(four: Any, levels: Any, each: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one write a minute after the first; if all turns were shown, there would be as many as turns."""
    world = four()
    times = play(world, levels, each, HOUR if each == SLOWLY else HOUR / 4)

    assert most_in_a_minute(times, 10 * MINUTE) <= 1
    assert len([time for time in times if time < 10 * MINUTE]) <= 4 * MOST_TURNS * 2
    assert world.condition("ClusterReady")[0] == "False"
    assert world.condition("Degraded")[0] == "True"
    assert "Again and again since 2026-11-20T10:" in message(world, "ClusterReady")

    monkeypatch.setattr(situation, "MOST_TURNS", 10**9)
    assert most_in_a_minute(play(four(), levels, each, 10 * MINUTE), 5 * MINUTE) >= 2


@pytest.mark.fault("B29")
def test_the_first_turns_are_shown_at_once(four: Any) -> None:
    world = four()
    for turn in range(MOST_TURNS):
        world.wait(20).workers_ready(3).step()
        assert world.condition("ClusterReady") == ("False", "WaitingForWorkers")
        assert world.condition("Resizing") == ("True", "ScalingUp")
        assert ("Again and again" in message(world, "ClusterReady")) == (turn == MOST_TURNS - 1)
        world.wait(5).workers_ready().step()
        assert (turn < MOST_TURNS - 1) == (world.condition("ClusterReady") == ("True", "AllWorkersJoined"))


def held(four: Any) -> Any:
    """A world in which workers were lost and came back five times, the last one just now."""
    world = four()
    play(world, (4, 3), 5, 10 * MOST_TURNS)
    world.workers_ready().wait(WRITE_SECONDS).settle()
    assert (world.condition("ClusterReady")[0], world.condition("Resizing")[0]) == ("False", "True")
    return world


@pytest.mark.fault("B29")
def test_a_pod_that_came_to_rest(four: Any) -> None:
    """The operator looks again when the conditions have been good for a while, without any event."""
    world = held(four)
    assert world.decide().requeue_after_seconds == CALM_SECONDS
    assert play(world, [4], CALM_SECONDS - 1, CALM_SECONDS - 1) == []

    world.wait(1).step()

    assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")
    assert world.condition("Resizing") == ("False", "AtTarget")
    assert play(world, [4], HOUR, HOUR) == []


@pytest.mark.fault("B29")
def test_a_release_waits_for_a_write_that_was_made_just_now(four: Any) -> None:
    """The operator looks again a minute after that write, also if it looks at another moment in between."""
    world = held(four)
    world.wait(CALM_SECONDS + 5)
    world.status["flapping"]["writeTime"] = timestamp_ms(world.now - timedelta(seconds=10))
    assert world.condition("ClusterReady")[0] == "False"

    assert world.decide().requeue_after_seconds == WRITE_SECONDS - 10
    world.wait(WRITE_SECONDS - 10).step()

    assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")


@pytest.mark.fault("B29")
def test_a_pod_that_stays_lost(four: Any) -> None:
    """The condition's message is the newest within a minute, and then nothing is written."""
    world = held(four)

    times = play(world, [2], HOUR, HOUR)

    assert len(times) <= 3
    assert max(times) <= WRITE_SECONDS + 1
    assert message(world, "ClusterReady").startswith("2 of 4 workers joined. Again and again since")
    assert world.status["workers"]["ready"] == 2


@pytest.mark.fault("B29")
@pytest.mark.parametrize("kind", ["Complete", "Failed"])
def test_the_end_is_not_delayed(four: Any, kind: str) -> None:
    world = held(four)

    world.trainer_ends(kind).settle()

    assert "Unknown" != world.condition("Succeeded")[0]
    assert world.condition("ClusterReady") == ("False", "Released")
    assert world.condition("Resizing") == ("False", "AtTarget")
    assert "flapping" not in world.status


def test_an_edit_of_the_spec_is_a_new_beginning(four: Any) -> None:
    world = held(four)

    world.edit(activeDeadlineSeconds=10**6).settle()

    assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")
    assert "flapping" not in world.status


def test_a_clock_that_was_set_back(four: Any) -> None:
    """What lies in the future is forgotten: nothing stays held until the clock has caught up."""
    world = held(four)

    world.wait(-86400).settle()
    assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")

    world = held(four)
    world.wait(-86400).workers_ready(2).settle()
    assert message(world, "ClusterReady").startswith("2 of 4")


def test_turns_that_are_long_ago_do_not_count(four: Any) -> None:
    world = four()
    for _ in range(3 * MOST_TURNS):
        world.wait(FORGOTTEN_AFTER_SECONDS).workers_ready(3).settle()
        world.wait(5).workers_ready().settle()
        assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")
    assert {one["turns"] for one in world.status["flapping"]["conditions"]} == {1}


def test_what_the_job_does_itself_is_no_turn(training_world: MakeWorld) -> None:
    """Each stage brings more workers, which come one by one, and a lower bound takes them away."""
    world = training_world(workers={"examplesPerWorker": 8, "minimum": 1, "maximum": 40})
    for update in (100, 240, 330, 390, 420, 440):
        world.wait(5).report(update).settle()
        for ready in range(world.status["workers"]["ready"], world.deployment["spec"]["replicas"] + 1):
            world.wait(1).workers_ready(ready).settle()
    assert world.status["workers"]["ready"] == 40

    world.edit(workers={"examplesPerWorker": 8, "minimum": 1, "maximum": 2}).settle()
    for ready in range(40, 1, -1):
        world.wait(1).workers_ready(ready).settle()

    assert world.status["workers"]["ready"] == 2
    assert "flapping" not in world.status


def test_the_start_of_a_pod_that_crashes_is_not_measured(four: Any) -> None:
    """Kubernetes waits longer and longer before it starts the pod again; that is no lead time of the job."""
    world = four()
    play(world, (4, 3), 5, 10 * MOST_TURNS)
    before = {name: world.status["workers"][name] for name in ("leadSeconds", "resizeSeconds")}

    play(world, (3, 3, 3, 3, 3, 4), 50, HOUR)

    assert before.items() <= world.status["workers"].items()


def test_a_report_that_comes_and_goes(four: Any) -> None:
    """A condition with two bad statuses."""
    world, times = four(), []
    for second in range(0, HOUR, 15):
        world.report(10, seconds_per_update=2000.0, updates=UPDATES + second % 2)
        times += [second] if world.step().status is not None else []
        world.wait(15)

    assert most_in_a_minute(times, 5 * MINUTE) <= 1
    assert world.condition("Stalled") in [("Unknown", "ReportRefused"), ("Unknown", "Flapping")]
    assert world.condition("Training") == ("True", "UpdatesCommitted")


def test_only_conditions_that_turn_are_held(four: Any) -> None:
    world = held(four)
    kinds = {one["type"] for one in world.status["flapping"]["conditions"]}
    assert {"ClusterReady", "Resizing"} <= kinds <= GOOD.keys()
    assert world.condition("Training") == ("True", "UpdatesCommitted")


@pytest.mark.fault("O21")
def test_what_is_held_says_what_is_now(four: Any) -> None:
    world = held(four)

    assert world.condition("ClusterReady") == ("False", "Flapping")
    assert message(world, "ClusterReady").startswith("The scheduler is ready and 4 workers joined. It is good once")


@pytest.mark.fault("O21")
@pytest.mark.parametrize("gone", [True, False])
def test_a_pod_that_is_gone_holds_no_condition(four: Any, gone: bool) -> None:
    """A scheduler's pod crashed again and again, was deleted, and its successor is well."""
    world = four()
    crash = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "name": "scheduler", "restartCount": 9}
    crash |= {"lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}, "ready": False}
    labels = {"batchgrowth.dev/role": "scheduler"}
    broken = {"kind": "Pod", "metadata": {"name": "digits-scheduler-a", "labels": labels}}
    for _ in range(MOST_TURNS + 1):
        world.pods = [broken | {"status": {"phase": "Running", "containerStatuses": [crash]}}]
        world.wait(70).workers_ready(3).settle()
        if world.condition("ClusterReady")[1] != "Flapping":
            world.wait(5).workers_ready().settle()
    world.wait(70).workers_ready(3).settle()
    assert world.condition("ClusterReady") == ("False", "PodBroken")

    world.pods = [] if gone else world.pods
    world.wait(70).workers_ready().settle()

    assert world.condition("ClusterReady") == (("True", "AllWorkersJoined") if gone else ("False", "Flapping"))
