"""Every way in which a job stands still has a condition on which an alert fires, within a minute or its own limit."""

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
import yaml
from batchgrowth import names
from batchgrowth_operator.seen.observed import Failure, Inquiry, Ref, timestamp
from batchgrowth_operator.seen.progress import foreign_policies

from docs.generate import ROOT

MakeWorld = Any
Act = Callable[[Any], None]
KEPT = {"checkpoint": {"volume": {"claimName": "kept"}}}
ALERTS = ROOT / "charts" / "batchgrowth" / "files" / "alerts.yaml"


def message(world: Any, kind: str) -> str:
    return next(str(one["message"]) for one in world.status["conditions"] if one["type"] == kind)


def pod_of(world: Any, role: str, **status: Any) -> None:
    metadata = {"name": f"digits-{role}-x", "labels": names.labels("digits", role)}
    world.pods.append({"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}, "status": status})


def ready_trainer(world: Any) -> None:
    at = timestamp(world.now)
    pod_of(
        world,
        "trainer",
        phase="Running",
        conditions=[{"type": "Ready", "status": "True", "lastTransitionTime": at}],
        containerStatuses=[{"name": "trainer", "ready": True}],
    )


def reports_stop(world: Any) -> None:
    ready_trainer(world)


def scheduler_is_cut_off_from_trainer(world: Any) -> None:
    ready_trainer(world)
    world.report(10, beat=9, waiting_for="the scheduler, whose connection was lost").settle()


def trainer_hangs(world: Any) -> None:
    """It reports, and commits nothing."""
    ready_trainer(world)
    world.beats = True


def never_an_update(world: Any) -> None:
    ready_trainer(world)
    world.report(0, beat=1, seconds_per_update=None).settle()
    world.status["trainerStatus"] |= {"update": 0}
    world.beats = True


def trainer_restarts(world: Any) -> None:
    world.trainer["status"] = {"startTime": timestamp(world.now), "failed": 1}


def trainer_is_pending(world: Any) -> None:
    world.trainer["status"] = {"active": 1}
    pod_of(
        world,
        "trainer",
        phase="Pending",
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}],
    )


def node_is_lost(world: Any) -> None:
    world.trainer["status"] = {"active": 1, "ready": 0}
    world.wait(45)
    at = timestamp(world.now)
    pod_of(
        world, "trainer", phase="Running", conditions=[{"type": "Ready", "status": "False", "lastTransitionTime": at}]
    )


def scheduler_is_gone(world: Any) -> None:
    world.parts[Ref("Deployment", "digits-scheduler")]["status"] = {}


def workers_are_gone(world: Any) -> None:
    world.workers_ready(0)


def children_are_refused(world: Any) -> None:
    world.failures = (Failure(Ref("NetworkPolicy", "digits"), 403, "admission webhook denied the request"),)


def spec_goes_bad(world: Any) -> None:
    world.edit(workload=world.job["spec"]["workload"] | {"arguments": {"not a name": "1"}})


def report_is_impossible(world: Any) -> None:
    world.report(10, beat=9, updates=461)


WAYS: dict[Act, tuple[tuple[str, str], int]] = {
    reports_stop: (("Stalled", "True"), 30),
    scheduler_is_cut_off_from_trainer: (("Stalled", "True"), 30),
    trainer_hangs: (("Stalled", "True"), 120),
    never_an_update: (("Training", "False"), 0),
    trainer_restarts: (("Training", "False"), 0),
    trainer_is_pending: (("Training", "False"), 0),
    node_is_lost: (("Training", "False"), 0),
    scheduler_is_gone: (("ClusterReady", "False"), 0),
    workers_are_gone: (("ClusterReady", "False"), 0),
    children_are_refused: (("ClusterReady", "False"), 0),
    spec_goes_bad: (("Accepted", "False"), 0),
    report_is_impossible: (("Stalled", "Unknown"), 0),
}
"""What stands still -> the condition that says so, and the seconds after which it does."""


def alerting() -> set[tuple[str, str]]:
    """Each type and status of a condition on which an alert of the chart fires."""
    found = set()
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            first = rule["expr"].split("unless")[0]
            for kind in ("Accepted", "ClusterReady", "Training", "Stalled", "Degraded", "Contested"):
                for status in ("True", "False", "Unknown"):
                    if f'type="{kind}", status="{status}"' in first:
                        found.add((kind, status))
                    if f'type="{kind}", status!="False"' in first and status != "False":
                        found.add((kind, status))
    return found


def stood_still(world: Any, way: Act, seconds: float) -> Any:
    """The world this long after the way of standing still began, with a pass whenever one is due."""
    world.beats = False
    world.workers_ready().report(10, beat=8, ready=1).settle()
    way(world)
    world.settle()
    beat, until = 10, world.now + timedelta(seconds=seconds)
    while world.now < until:
        left = (until - world.now).total_seconds()
        world.wait(min(left, 10.0, world.decide().requeue_after_seconds or left))
        if world.beats:
            beat += 1
            changes = {} if way is trainer_hangs else {"seconds_per_update": None}
            world.report(10 if way is trainer_hangs else 0, beat=beat, ready=1, **changes)
        world.settle()
    return world


@pytest.mark.fault("O16")
@pytest.mark.parametrize(
    ("way", "seconds"), [*product(WAYS, (0, 30, 60, 120, 300))], ids=lambda one: getattr(one, "__name__", None)
)
def test_a_way_of_standing_still_is_said_in_time(training_world: MakeWorld, way: Act, seconds: int) -> None:
    """In a condition on which an alert fires, for as long as the job stands still."""
    (kind, status), after = WAYS[way]
    world = stood_still(training_world(**KEPT), way, seconds)

    assert (seconds >= after) == (world.condition(kind)[0] == status)
    assert (kind, status) in alerting()
    assert len(message(world, kind)) > 20


@pytest.mark.fault("O16")
def test_silence_says_since_when_and_what_was_tried(training_world: MakeWorld) -> None:
    """As after a NetworkPolicy that denies everything: pods stay ready, and nothing reaches the operator."""
    world = training_world(**KEPT)
    world.inquiry = Inquiry(policies=("deny-all",))
    world = stood_still(world, reports_stop, 40)

    assert world.condition("Stalled") == ("True", "ReportsStopped")
    assert world.status["phase"] == "Stalled"
    assert message(world, "Stalled") == (
        "The trainer has reported nothing since 2026-11-20T10:00:10Z. The trainer's pod digits-trainer-x is ready. "
        "The scheduler's pod is ready, so its Service has an endpoint. 1 of 1 worker pods are ready. "
        "The operator can read the reports. NetworkPolicies that are not the operator's apply to the job's pods: "
        "deny-all. Let them admit what the job's own policy digits admits, or exempt batchgrowth.dev/job."
    )
    assert [event.type for event in world.events if event.reason == "ReportsStopped"] == ["Warning"]

    world.report(11, beat=9, ready=1).settle()
    assert world.condition("Stalled") == ("False", "ProgressSeen")


@pytest.mark.fault("O16")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda world: world.pods.clear(), "The trainer's pod is not ready."),
        (lambda world: scheduler_is_gone(world), "The scheduler's pod is not ready, so its Service has no endpoint."),
        (lambda world: world.parts.pop(Ref("Service", "digits-scheduler")), "The scheduler has no Service."),
        (lambda world: world.workers_ready(0), "0 of 1 worker pods are ready."),
        (lambda world: None, "The trainer's log may say more."),
        (
            lambda world: setattr(world, "inquiry", Inquiry(refusal="configmaps is forbidden")),
            "The operator cannot read the reports: configmaps is forbidden.",
        ),
    ],
)
def test_what_the_operator_finds_is_in_the_message(training_world: MakeWorld, change: Act, said: str) -> None:
    world = stood_still(training_world(**KEPT), reports_stop, 10)
    change(world)
    world.wait(30).settle()
    assert said in message(world, "Stalled")


@pytest.mark.fault("O16")
def test_a_trainer_that_reports_while_it_evaluates_is_not_silent(training_world: MakeWorld) -> None:
    world = stood_still(training_world(**KEPT), trainer_hangs, 100)
    assert world.condition("Stalled") == ("False", "ProgressSeen")


@pytest.mark.fault("O16")
def test_a_trainer_that_never_commits_an_update_is_stalled_in_the_end(training_world: MakeWorld) -> None:
    world = stood_still(training_world(**KEPT), never_an_update, 610)
    assert world.condition("Stalled") == ("True", "NoProgress")


@pytest.mark.fault("O16")
@pytest.mark.parametrize(
    ("selector", "labels", "found"),
    [
        ({}, {}, ("deny",)),
        ({}, {names.JOB_LABEL: "other"}, ()),
        ({"matchLabels": {names.ROLE_LABEL: "trainer"}}, {}, ("deny",)),
        ({"matchLabels": {"app": "web"}}, {}, ()),
        ({"matchExpressions": [{"key": names.JOB_LABEL, "operator": "Exists"}]}, {}, ("deny",)),
        ({"matchExpressions": [{"key": names.JOB_LABEL, "operator": "DoesNotExist"}]}, {}, ()),
        ({"matchExpressions": [{"key": names.JOB_LABEL, "operator": "In", "values": ["digits"]}]}, {}, ("deny",)),
        ({"matchExpressions": [{"key": names.JOB_LABEL, "operator": "NotIn", "values": ["digits"]}]}, {}, ()),
    ],
)
def test_policies_of_others_that_apply_to_the_pods(
    selector: dict[str, Any], labels: dict[str, str], found: tuple[str, ...]
) -> None:
    policy = {"metadata": {"name": "deny", "labels": labels}, "spec": {"podSelector": selector}}
    assert foreign_policies([policy], "digits") == found


@pytest.mark.fault("O25")
def test_stages_that_passed_while_no_operator_was_there(training_world: MakeWorld) -> None:
    """The trainer's report has their times. Times that cannot be are moved to the nearest that can."""
    world = training_world()
    at = (world.now + timedelta(seconds=60)).timestamp()
    begun = {"1": at, "2": at + 100.5, "3": 0.0, "4": 2.0**37}
    world.wait(3600).report(430, begun=begun).settle()

    assert [record["startTime"] for record in world.status["history"][1:]] == [
        "2026-11-20T10:01:10.000Z",
        "2026-11-20T10:02:50.500Z",
        "2026-11-20T10:02:50.500Z",
        "2026-11-20T11:00:10.000Z",
    ]


def test_a_stage_of_a_job_whose_status_was_lost_began_when_the_trainer_says(training_world: MakeWorld) -> None:
    """As after a restore from a backup, which has no status."""
    world = training_world()
    began = world.now.timestamp()
    world.report(430, begun={str(stage): began + stage for stage in range(5)})
    world.job["status"] = {}
    world.wait(3600).settle()

    assert world.status["history"][0]["startTime"] == "2026-11-20T10:00:10.000Z"
