"""Random lives of a job: decisions reach a fixed point, and a crash after any write does not change the end."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from batchgrowth.contract.status import REASONS, JobStatus
from batchgrowth_operator.seen.observed import Failure, Ref
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MakeWorld = Any
Action = Callable[[Any], None]


def edit_workers(world: Any, maximum: int, lead: int) -> None:
    world.edit(workers={"examplesPerWorker": 128, "maximum": maximum, "leadSeconds": lead})


def lose(world: Any, index: int) -> None:
    """Deletes a child."""
    refs = sorted(world.children)
    if refs:
        del world.children[refs[index % len(refs)]]


def tamper(world: Any, replicas: int) -> None:
    if world.deployment is not None:
        world.deployment["spec"]["replicas"] = replicas


def workers_ready(world: Any, count: int) -> None:
    if world.deployment is not None:
        world.workers_ready(count)


def scheduler_ready(world: Any) -> None:
    if world.cluster is not None:
        world.scheduler_ready()


def trainer_runs(world: Any, failed: int) -> None:
    if world.trainer is not None:
        world.trainer_runs(failed=failed)


def trainer_ends(world: Any, kind: str) -> None:
    if world.trainer is not None:
        world.trainer_ends(kind)


def trainer_stops(world: Any) -> None:
    """The Job controller obeys spec.suspend."""
    if world.trainer is not None and world.trainer["spec"]["suspend"]:
        world.trainer["status"] = {}


def report(world: Any, update: int, start: int, pace: float) -> None:
    if world.child("ConfigMap", "digits-progress") is not None:
        world.report(update, start=start, seconds_per_update=pace)


def begin_deletion(world: Any) -> None:
    if world.cluster is not None:
        world.cluster["metadata"]["deletionTimestamp"] = "2026-11-20T10:00:00Z"


def finish_deletion(world: Any) -> None:
    for ref in [ref for ref, child in world.children.items() if "deletionTimestamp" in child["metadata"]]:
        del world.children[ref]


def act(action: Callable[..., None], *values: st.SearchStrategy[Any]) -> st.SearchStrategy[Action]:
    return st.tuples(*values).map(lambda given: lambda world: action(world, *given))


def refuse(world: Any, code: int) -> None:
    world.failures = () if code == 200 else (Failure(Ref("DaskCluster", "digits"), code, "no"),)


ACTIONS = st.one_of(
    act(edit_workers, st.integers(1, 8), st.sampled_from([0, 5, 300])),
    act(lose, st.integers(0, 20)),
    act(tamper, st.integers(0, 9)),
    act(workers_ready, st.integers(0, 5)),
    act(scheduler_ready),
    act(trainer_runs, st.integers(0, 2)),
    act(trainer_ends, st.sampled_from(["Complete", "Failed"])),
    act(trainer_stops),
    act(report, st.integers(0, 460), st.integers(0, 2), st.sampled_from([0.001, 0.1, 1.0, 30.0])),
    act(begin_deletion),
    act(finish_deletion),
    act(refuse, st.sampled_from([0, 200, 404, 422])),
    act(lambda world, seconds: world.wait(seconds), st.floats(0, 1000)),
    act(lambda world, suspend: world.edit(suspend=suspend), st.booleans()),
    act(lambda world, image: world.edit(image=image), st.sampled_from(["example/a:1", "example/b:1"])),
)
LIVES = st.lists(ACTIONS, max_size=12)
JOBS = st.fixed_dictionaries(
    {},
    optional={
        "activeDeadlineSeconds": st.just(500),
        "clusterRetention": st.sampled_from(["DeleteOnFinish", "RetainOnFailure", "Retain"]),
        "suspend": st.booleans(),
        "ttlSecondsAfterFinished": st.just(300),
    },
)
FIXTURE_IS_A_FUNCTION = [HealthCheck.function_scoped_fixture]


def check(world: Any) -> None:
    """Asserts the invariants of a settled world."""
    status = JobStatus.model_validate(world.status)
    for condition in status.conditions:
        assert condition.reason in REASONS[condition.type]
    if world.deployment is not None and world.condition("Succeeded")[0] == "Unknown":
        spec = world.job["spec"]["workers"]
        assert world.deployment["spec"]["replicas"] <= spec["maximum"] or world.job["spec"].get("suspend")


@settings(max_examples=100, deadline=None, suppress_health_check=FIXTURE_IS_A_FUNCTION)
@given(JOBS, LIVES)
def test_decisions_come_to_rest(make_world: MakeWorld, spec: dict[str, Any], life: list[Action]) -> None:
    """A decision that deletes nothing is the last one; one that deletes may be followed by one that recreates."""
    world = make_world(**spec)
    for action in life:
        action(world)
        decision = world.step()
        if world.job_deleted:
            return
        if not decision.delete:
            assert world.decide().is_empty
        world.settle(passes=4)
        check(world)


@settings(max_examples=40, deadline=None, suppress_health_check=FIXTURE_IS_A_FUNCTION)
@given(JOBS, LIVES, st.floats(0, 0.99))
def test_nothing_is_written_before_it_is_due(
    make_world: MakeWorld, spec: dict[str, Any], life: list[Action], part: float
) -> None:
    """After a pass that writes nothing, time alone changes nothing until the time that the pass gave."""
    world = make_world(**spec)
    world.settle()
    for action in life:
        action(world)
        world.settle(passes=8)
        if world.job_deleted:
            return
    due = world.decide().requeue_after_seconds
    world.wait((10_000 if due is None else due) * part)
    assert world.decide().is_empty


REPORTS = st.lists(st.tuples(st.floats(0, 60), st.integers(0, 460), st.integers(0, 4)), min_size=2, max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=FIXTURE_IS_A_FUNCTION)
@given(JOBS, REPORTS)
def test_nothing_follows_a_conclusive_decision(
    training_world: MakeWorld, spec: dict[str, Any], reports: list[tuple[float, int, int]]
) -> None:
    """So no pass is needed after it, neither at once nor at another time than the one it gave (to a millisecond)."""
    world = training_world(**spec | {"suspend": False})
    for seconds, update, ready in reports:
        world.wait(seconds).report(update, ready=ready)
        decision = world.step()
        if decision.is_progress_only:
            after = world.decide()
            assert after.is_empty
            assert pytest.approx(decision.requeue_after_seconds, abs=0.001) == after.requeue_after_seconds
        world.settle(passes=4)


def test_progress_within_a_stage_is_progress_only_and_nothing_else(
    make_world: MakeWorld, training_world: MakeWorld
) -> None:
    assert not make_world().step().is_progress_only
    world = training_world()
    assert not world.decide().is_progress_only, "there is nothing to write"
    assert world.wait(10).report(20).step().is_progress_only
    assert not world.wait(10).report(300).step().is_progress_only, "the next stage"
    world.settle()
    world.edit(suspend=True)
    assert not world.step().is_progress_only


@settings(max_examples=40, deadline=None, suppress_health_check=FIXTURE_IS_A_FUNCTION)
@given(JOBS, LIVES)
def test_what_ended_stays_ended(make_world: MakeWorld, spec: dict[str, Any], life: list[Action]) -> None:
    world = make_world(**spec)
    verdict = ("", "")
    for action in life:
        action(world)
        world.settle()
        if verdict[0] in ("True", "False"):
            assert verdict == world.condition("Succeeded")
        verdict = world.condition("Succeeded")
        if world.job_deleted:
            return


def begin(world: Any) -> None:
    world.settle()
    world.wait(10).scheduler_ready().workers_ready().trainer_runs().report(10)


def suspend(world: Any) -> None:
    begin(world)
    world.settle()
    world.edit(suspend=True)
    world.trainer["status"] = {}


def milestone(world: Any) -> None:
    begin(world)
    world.settle()
    world.wait(5).report(431)


def finish(world: Any) -> None:
    begin(world)
    world.settle()
    world.report(460).trainer_ends()


def another_image(world: Any) -> None:
    begin(world)
    world.settle()
    world.edit(image="example/other:1")


@pytest.mark.fault("B01")
@pytest.mark.parametrize("happening", [lambda world: None, begin, milestone, suspend, finish, another_image])
def test_a_crash_after_any_write_does_not_change_the_end(make_world: MakeWorld, happening: Action) -> None:
    undisturbed = make_world()
    happening(undisturbed)
    writes = len(undisturbed.writes(undisturbed.decide()))
    undisturbed.settle()

    for count in range(writes):
        world = make_world()
        happening(world)
        for write in world.writes(world.decide())[:count]:
            write()
        world.settle()
        assert (undisturbed.children, undisturbed.status) == (world.children, world.status), f"after {count} writes"


@pytest.mark.fault("B08")
@settings(max_examples=40, deadline=None, suppress_health_check=FIXTURE_IS_A_FUNCTION)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 460)), min_size=1, max_size=8), st.randoms())
def test_reports_in_any_order_and_twice(make_world: MakeWorld, reports: list[tuple[int, int]], random: Any) -> None:
    """A job's position depends on the newest report alone."""
    newest = max([(0, 10), *reports])
    ends = []
    for _ in range(2):
        random.shuffle(reports)
        world = make_world()
        begin(world)
        world.settle()
        for start, update in [*reports, *reports, newest]:
            world.report(update, start=start).wait(6).settle()
        ends.append(copy.deepcopy((world.status["stage"], world.status["trainerStatus"]["update"])))

    assert ends[0] == ends[1]
    assert newest[1] == ends[0][1]
