"""Kubernetes events: a sentence for each change, with a documented reason."""

from typing import Any

import pytest
from batchgrowth.contract.status import REASONS, STAGE_BEGAN
from batchgrowth_operator.children import dask_cluster
from batchgrowth_operator.job.conditions import NOT_KEPT
from batchgrowth_operator.seen import situation as situations
from batchgrowth_operator.seen.observed import Failure, Ref

MakeWorld = Any

PLAN_MADE = f"The plan has 6 stages and 460 updates. {NOT_KEPT}"


def texts(world: Any) -> dict[str, str]:
    """The newest event's message by reason."""
    return {event.reason: event.message for event in world.events}


def live(world: Any) -> Any:
    """A job's life: start, growth, a lost trainer, a lost worker, a stall, a pause, and the end."""
    world.settle()
    world.wait(10).scheduler_ready().workers_ready().trainer_runs().report(10).settle()
    world.report(431).settle()
    world.wait(20).workers_ready().settle()
    world.trainer["status"] = {"active": 1, "failed": 1}
    world.settle()
    world.trainer_runs().report(432, start=1).settle()
    world.workers_ready(3).settle()
    world.wait(60).settle()
    world.workers_ready().settle()
    world.wait(200).settle()
    world.report(433, start=1).settle()
    world.edit(workers={"examplesPerWorker": 128, "maximum": 2}).settle()
    world.workers_ready().settle()
    world.edit(suspend=True).settle()
    world.trainer["status"] = {}
    world.settle()
    world.edit(suspend=False).settle()
    world.failures = (Failure(Ref("Deployment", "digits-workers"), 422, "bad quantity"),)
    world.settle()
    world.failures = ()
    world.scheduler_ready().workers_ready().trainer_runs().report(460, start=2).trainer_ends().settle()
    return world


def test_a_job_s_life_reads_as_sentences(make_world: MakeWorld) -> None:
    world = live(make_world())

    assert [event.message for event in world.events[:6]] == [
        PLAN_MADE,
        "Requested 1 worker; 0 joined so far.",
        "The scheduler is ready and 1 worker joined.",
        "Training began with 1 worker.",
        "The requested worker has joined.",
        "Stage 1 began with batch size 32.",
    ]
    assert texts(world) == {
        "AllWorkersJoined": "The scheduler is ready and 4 workers joined.",
        "AtTarget": "No workers are being added or removed.",
        "ChildRefused": "Deployment digits-workers cannot be stored, because the API server refuses it: bad quantity. "
        "Remove what refuses it; the operator tries again.",
        "Finished": "Every update of the plan is done.",
        "Discarding": f"The trainer stops, and update 433 is lost. {NOT_KEPT}",
        "FullStrength": "No worker of the stage is missing or adds differently any more.",
        "NoProgress": "No update was committed for 120 s.",
        "NotSuspended": "The job was resumed.",
        "PlanMade": PLAN_MADE,
        "ProgressSeen": "Updates are being committed again.",
        "ScalingDown": "Removing 2 of 4 workers.",
        "ScalingUp": "Requested 1 worker; 0 joined so far.",
        "StageBegan": "Stage 6 began with batch size 512.",
        "StateLost": "The job is suspended and holds no workers. Update 433 is lost: the training starts over when the "
        f"job is resumed. {NOT_KEPT}",
        "TooFewWorkers": "3 of 4 workers joined.",
        "TrainerRestarting": "The trainer starts over, since nothing keeps its checkpoints.",
        "UpdatesCommitted": "Training resumed with 4 workers.",
    }
    assert {
        "All 4 requested workers have joined.",
        "Training resumed with 4 workers.",
        "Scaled down to 2 workers.",
    } <= {event.message for event in world.events}


def test_reasons_are_documented(make_world: MakeWorld) -> None:
    known = {STAGE_BEGAN}.union(*REASONS.values())
    assert {event.reason for event in live(make_world()).events} <= known


def test_what_a_situation_derives_is_derived_once_a_pass(
    training_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules, scaling, status and children all use it."""
    world, calls = training_world(), []
    for name in ("is_running", "cluster_problem"):
        original = getattr(situations, name)
        monkeypatch.setattr(situations, name, lambda *seen, n=name, o=original: calls.append(n) or o(*seen))
    world.report(431, ready=0).workers_ready(0).wait(60)

    world.decide()

    assert sorted(calls) == ["cluster_problem", "is_running"]


def test_the_workers_template_is_made_once_a_pass(training_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the installation, the condition Accepted and the Deployment all need it."""
    world, made, merged = training_world(), [], dask_cluster.merged
    monkeypatch.setattr(dask_cluster, "merged", lambda base, overlay: made.append(overlay) or merged(base, overlay))

    world.decide()

    assert len(made) == 1
