"""A secret of a job stays where its user wrote it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from batchgrowth import names
from batchgrowth.errors import WorkloadError
from batchgrowth_operator.api.client import EVENTS, KINDS
from batchgrowth_operator.seen.observed import TRAINER as CONTAINER
from batchgrowth_operator.seen.observed import Ref
from operator_field import CHILDREN, JOB, PLAN, TRAINER, WORKERS, Field, until

from cluster.ports import LOOPBACK, free_ports

CANARY = "c4naryHunter2c4naryHunter2"
LAST_LINES = f"env HF_TOKEN={CANARY}\nOperationalError: cannot log in with api_key={CANARY}, password={CANARY}"
POD = Ref("Pod", "digits-trainer-x")


@pytest.mark.fault("E03")
def test_a_secret_of_a_job_appears_nowhere_else(make_field: Callable[[], Field], tmp_path: Path) -> None:
    """The job, its pods' templates and the copy of its arguments for the trainer contain it; nothing that tells of it.

    Not the status, events, the log or the metrics, nor any other object, although the trainer's last lines print it.
    """
    ground, log, [port] = make_field(), tmp_path / "log", free_ports(1)
    ground.start(log=log, metrics_port=port)
    worker = {"name": "worker", "env": [{"name": "API_KEY", "value": CANARY}]}
    ground.apply(
        clusterRetention="Retain",
        env=[{"name": "HF_TOKEN", "value": CANARY}],
        workload={"entrypoint": "own:workload", "examples": 1437, "arguments": {"token": CANARY}},
        workers={"examplesPerWorker": 128, "template": {"spec": {"containers": [worker]}}},
    )
    until(ground.is_complete)
    ground.workers_come()
    ground.report(10)
    until(lambda: ground.condition("Training"), ("True", "UpdatesCommitted"))

    fail_trainer(ground)

    until(lambda: ground.condition("Succeeded"), ("False", "WorkloadFailed"))
    message = next(one["message"] for one in ground.get(JOB)["status"]["conditions"] if one["type"] == "Succeeded")
    assert LAST_LINES.replace(CANARY, "[redacted]") == message
    metrics = urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=10).read().decode()
    ground.stop()
    events = ground.api._send("get", EVENTS, EVENTS.path(ground.namespace))["items"]
    told = json.dumps([ground.get(JOB)["status"], events]) + log.read_text() + metrics
    assert "WorkloadFailed" in {event["reason"] for event in events}
    assert "created ConfigMap/digits-plan" in log.read_text()
    assert '"Succeeded"' in metrics
    assert CANARY not in told
    assert {ref for ref in CHILDREN if CANARY in json.dumps(ground.get(ref))} == {TRAINER, WORKERS, PLAN}
    assert CANARY not in ground.get(PLAN)["data"][names.PLAN_KEY]


def fail_trainer(ground: Field) -> None:
    """The trainer's pod fails, and its Job with it, as the kubelet and the Job controller say it."""
    uid = ground.get(TRAINER)["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": TRAINER.name, "uid": uid, "controller": True}
    pod = {
        "metadata": {"name": POD.name, "labels": names.labels("digits", CONTAINER), "ownerReferences": [owner]},
        "spec": {"containers": [{"name": CONTAINER, "image": "none"}]},
    }
    ground.api._send("post", KINDS["Pod"], KINDS["Pod"].path(ground.namespace), body=pod)
    ended = {"exitCode": WorkloadError.exit_code, "message": LAST_LINES}
    container = {"name": CONTAINER, "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    containers = [container | {"state": {"terminated": ended}}]
    ground.patch(POD, {"status": {"phase": "Failed", "containerStatuses": containers}}, "status")
    at = "2026-11-20T10:00:00Z"
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": at} for kind in ("FailureTarget", "Failed")]
    ground.patch(TRAINER, {"status": {"startTime": at, "failed": 1, "conditions": conditions}}, "status")
