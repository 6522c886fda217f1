"""`kubectl wait` ends at either end of a job, and kstatus, the library of Flux, says what became of it."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from operator_field import JOB, TRAINER, Field, until

from cluster.apiserver import ApiServer
from cluster.build import built, folder_of, silence
from cluster.recipe import KSTATUS

SAID = {"status": "True", "lastTransitionTime": "2026-11-20T10:00:00Z", "lastProbeTime": None}
FAILED = {
    "conditions": [{"type": kind, "reason": "BackoffLimitExceeded", **SAID} for kind in ("FailureTarget", "Failed")],
    "startTime": "2026-11-20T09:00:00Z",
    "failed": 1,
}


def fails(ground: Field) -> None:
    ground.patch(TRAINER, {"status": FAILED}, "status")


def succeeds(ground: Field) -> None:
    ground.report(460)
    ground.trainer_ends()


def kstatus_of(job: Any) -> str:
    program = built(KSTATUS, silence) / "kstatus"
    done = subprocess.run([program], input=json.dumps(job), capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.fault("N14")
@pytest.mark.parametrize(("ends", "ended", "found"), [(succeeds, "Complete", "Current"), (fails, "Failed", "Failed")])
def test_a_wait_ends_either_way(
    ends: Callable[[Field], None], ended: str, found: str, ground: Field, apiserver: ApiServer
) -> None:
    if not folder_of(KSTATUS).is_dir():
        pytest.skip("needs kstatus: python -m cluster build kstatus")
    wait = ("wait", "bgj/digits", "--namespace", ground.namespace, "--timeout=20s")
    ground.apply()
    until(lambda: ground.condition("Reconciling"), ("True", "TrainingAwaited"))
    assert kstatus_of(ground.get(JOB)) == "InProgress"
    until(lambda: ground.get(TRAINER) is not None)
    ends(ground)
    for way in ("jsonpath={.status.completionTime}", f"condition={ended}"):
        done = apiserver.kubectl(*wait, f"--for={way}")
        assert (done.returncode, done.stderr) == (0, "")
    assert kstatus_of(ground.get(JOB)) == found
