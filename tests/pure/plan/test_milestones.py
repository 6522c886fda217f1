"""Milestones by epoch or by update: the plan they make, and their rules in Python and in CEL."""

from __future__ import annotations

import json
from typing import Any

import cel
import pytest
from batchgrowth import JobSpec, PlanError, Position, make_plan, mathematics
from batchgrowth.choices.growth_declared import MOST_STEPS, Milestone, MilestonesBlock, MilestonesRule
from batchgrowth.extend import Until
from batchgrowth.plan import MOST_STAGES, BatchDecision
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError


def job(steps: list[dict[str, int]], **changes: Any) -> JobSpec:
    """A job of 130 updates with its first batch, 8, that follows the steps."""
    given = {
        "workload": {"entrypoint": "a:b", "examples": 100},
        "epochs": 10,
        "batch": {"initial": 8, "maximum": 4096, "growth": {"type": "Milestones", "milestones": {"steps": steps}}},
        "learningRate": {"initial": "0.1"},
    }
    return JobSpec.model_validate(given | changes)


def by_update(*pairs: tuple[int, int]) -> list[dict[str, int]]:
    """Steps of updates and batch sizes."""
    return [{"update": update, "batchSize": size} for update, size in pairs]


def test_the_batch_grows_at_the_updates() -> None:
    """In the middle of an epoch, too, and the stages are those of the list."""
    plan = make_plan(job(by_update((3, 9), (12, 13), (13, 50), (20, 5000))))
    assert [(s.first_update, s.batch_size) for s in plan.stages] == [(0, 8), (3, 9), (12, 13), (13, 50), (20, 4096)]
    assert sum(plan.step_at(plan.position_at(update)).examples for update in range(plan.updates)) == 100 * 10


@pytest.mark.parametrize(
    "rate",
    [
        {"initial": "0.1", "warmup": {"updates": 100}},
        {"initial": "0.1", "rule": "AdaScale", "adaScale": {"everyUpdates": 100}},
    ],
)
def test_what_a_measured_run_decided_may_end_before_its_warmup_or_first_look(rate: dict[str, Any]) -> None:
    """They came within the 130 updates of the first batch; the run's manifest must not be refused for its 52."""
    measured = {"initial": 8, "maximum": 32, "shard": 4, "growth": {"type": "LossRatio"}}
    declared = job(by_update((13, 16), (20, 32)), learningRate=rate)
    decisions = [BatchDecision(13, 16, 2.0), BatchDecision(20, 32, 4.0)]
    decided = make_plan(job([], batch=measured, learningRate=rate), decisions)
    assert make_plan(declared).updates == decided.updates == 52


@pytest.mark.parametrize(
    ("position", "wanted", "until"),
    [
        (Position(0), 8, Until(update=3)),
        (Position(2, 9), 8, Until(update=3)),
        (Position(3), 9, Until(update=20)),
        (Position(19), 9, Until(update=20)),
        (Position(20), 13, Until()),
        (Position(999, 99), 13, Until()),
    ],
)
def test_table(position: Position, wanted: int, until: Until) -> None:
    rule = MilestonesRule(8, (3, 20), (9, 13), by_update=True)
    assert (wanted, until) == (rule.wanted(position), rule.until(position))


def test_as_many_steps_as_a_plan_can_hold() -> None:
    steps = by_update(*((update, 8 + update) for update in range(1, MOST_STEPS + 1)))
    spec = job(steps, workload={"entrypoint": "a:b", "examples": 100_000}, epochs=10)
    assert len(make_plan(spec).stages) == MOST_STAGES
    assert [stage.batch_size for stage in make_plan(spec).stages] == [*range(8, 8 + MOST_STAGES)]


@pytest.mark.parametrize(("steps", "updates"), [(((130, 9),), 130), (((3, 100), (13, 200)), 13)])
def test_an_update_past_the_end_names_the_steps(steps: tuple[tuple[int, int], ...], updates: int) -> None:
    """A step that is never reached is a mistake; only the plan knows the number of updates."""
    with pytest.raises(PlanError, match=rf"^spec\.batch\.growth\.milestones\.steps: update {updates}; .* below the "):
        make_plan(job(by_update(*steps)))


def test_the_mathematics_of_steps_by_epoch_is_unchanged() -> None:
    """A checkpoint from before there were updates still resumes."""
    growth = {"type": "Milestones", "milestones": {"steps": [{"epoch": 5, "batchSize": 16}]}}
    batch: Any = mathematics(job([{"epoch": 5, "batchSize": 16}]))["batch"]
    assert json.dumps(growth) == json.dumps(batch["growth"])


def cel_holds(cels: list[str | None], value: dict[str, Any]) -> bool:
    """Whether every rule holds by its CEL."""
    return all(rule is None or cel.evaluate(rule, cel.Context({"self": value})) is True for rule in cels)


def python_holds(model: type[Milestone | MilestonesBlock], value: dict[str, Any]) -> bool:
    """Whether the model accepts the value."""
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True


entries = st.builds(
    lambda at, size: {"batchSize": size, **at},
    st.one_of(
        st.fixed_dictionaries({"epoch": st.integers(1, 9)}),
        st.fixed_dictionaries({"update": st.integers(1, 9)}),
    ),
    st.integers(1, 9),
)


@given(
    st.one_of(st.lists(entries, min_size=1, max_size=4), st.lists(entries.filter(lambda e: "update" in e), min_size=1))
)
def test_cel_and_python_agree_on_lists(steps: list[dict[str, int]]) -> None:
    given = {"steps": steps}
    assert python_holds(MilestonesBlock, given) == cel_holds([rule.cel for rule in MilestonesBlock.rules], given)


@pytest.mark.parametrize("given", [{}, {"epoch": 1}, {"update": 1}, {"epoch": 1, "update": 1}], ids=str)
def test_cel_and_python_agree_on_an_entry(given: dict[str, int]) -> None:
    whole = given | {"batchSize": 2}
    assert (1 == len(given)) == python_holds(Milestone, whole) == cel_holds([r.cel for r in Milestone.rules], whole)


@pytest.mark.parametrize("kind", ["epoch", "update"])
@pytest.mark.parametrize("field", ["at", "batchSize"])
@pytest.mark.parametrize("place", [1, 9, 10, 11, 99, 100, 101, 119])
def test_cel_sees_a_pair_anywhere_that_does_not_rise(place: int, field: str, kind: str) -> None:
    """The digits of the index reach every pair."""
    steps = [{kind: k, "batchSize": k} for k in range(1, 121)]
    steps[place][kind if field == "at" else field] -= 1
    assert not cel_holds([rule.cel for rule in MilestonesBlock.rules], {"steps": steps})


def test_cel_sees_the_last_pair_of_the_longest_list() -> None:
    steps = [{"update": k, "batchSize": k} for k in range(1, MOST_STEPS + 1)]
    sizes = [MilestonesBlock.rules[-1].cel]
    assert cel_holds(sizes, {"steps": steps})
    steps[-1]["batchSize"] -= 1
    assert not cel_holds(sizes, {"steps": steps})
