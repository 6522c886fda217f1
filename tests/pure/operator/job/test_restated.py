"""Conditions that tools of others read: `kubectl wait`, kstatus, and the health script of Argo CD in docs/gitops.md."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.contract.status import RESTATING

ROOT = Path(__file__).parents[4]
SCRIPT = re.search(r"```lua\n(.+?)```", (ROOT / "docs" / "gitops.md").read_text(), re.DOTALL)
TOOLS = ("Complete", "Failed", "Stalled", "Reconciling")


def starts(make_world: Any, training_world: Any) -> Any:
    world = make_world()
    world.settle()
    return world


def trains(make_world: Any, training_world: Any) -> Any:
    return training_world()


def commits_none(make_world: Any, training_world: Any) -> Any:
    world = training_world()
    world.wait(120).settle()
    return world


def is_suspended(make_world: Any, training_world: Any) -> Any:
    world = make_world(suspend=True)
    world.settle()
    return world


def is_refused(make_world: Any, training_world: Any) -> Any:
    world = make_world(epochs=-1)
    world.settle()
    return world


def has_succeeded(make_world: Any, training_world: Any) -> Any:
    world = training_world()
    world.trainer_ends()
    world.settle()
    return world


def has_failed(make_world: Any, training_world: Any) -> Any:
    world = training_world()
    world.trainer_ends("Failed", "BackoffLimitExceeded")
    world.settle()
    return world


WAYS: list[tuple[Callable[[Any, Any], Any], str, str]] = [
    (starts, "F F F T", "Progressing"),
    (trains, "F F F F", "Progressing"),
    (commits_none, "F F T F", "Degraded"),
    (is_suspended, "F F F F", "Suspended"),
    (is_refused, "- - T F", "Degraded"),
    (has_succeeded, "T F F F", "Healthy"),
    (has_failed, "F T T F", "Degraded"),
]
"""A job's way of being, its conditions TOOLS by their first letters, and what Argo CD calls it."""


@pytest.mark.fault("N14")
@pytest.mark.parametrize(("way", "letters"), [(way, letters) for way, letters, _ in WAYS])
def test_conditions_of_others(way: Any, letters: str, make_world: Any, training_world: Any) -> None:
    world = way(make_world, training_world)
    assert [world.condition(kind)[0][:1] or "-" for kind in TOOLS] == letters.split()


@pytest.mark.parametrize("way", [way for way, *_ in WAYS])
def test_they_cause_no_events_and_no_writes(way: Any, make_world: Any, training_world: Any) -> None:
    world = way(make_world, training_world)
    assert [event.reason for event in world.events if event.reason in RESTATING] == []
    assert world.decide().status is None


def test_the_end_of_a_refusal_is_no_progress(make_world: Any) -> None:
    world = make_world(epochs=-1)
    world.settle()
    world.edit(epochs=30).settle()
    assert world.condition("Stalled") == ("False", "ProgressSeen")
    assert [event.reason for event in world.events] == ["SpecInvalid", "PlanMade", "ScalingUp"]


def test_a_trainer_that_writes_its_checkpoint_is_awaited(training_world: Any) -> None:
    world = training_world()
    world.edit(suspend=True).settle()
    assert world.condition("Reconciling") == ("True", "SuspensionAwaited")


@pytest.mark.parametrize(("way", "health"), [(way, health) for way, _, health in WAYS])
def test_argo_cd(way: Any, health: str, make_world: Any, training_world: Any) -> None:
    lupa = pytest.importorskip("lupa.lua51", reason="Argo CD's Lua is 5.1")
    assert SCRIPT is not None
    world = way(make_world, training_world)
    lua = lupa.LuaRuntime()
    judge = lua.eval(f"function(obj)\n{SCRIPT[1]}\nend")
    verdict = judge(lua.table_from(world.job, recursive=True))
    assert (verdict.status, len(verdict.message) > 0) == (health, True)
    world.job["metadata"]["generation"] += 1
    assert judge(lua.table_from(world.job, recursive=True)).status == "Progressing"
    del world.job["status"]
    assert judge(lua.table_from(world.job, recursive=True)).status == "Progressing"
