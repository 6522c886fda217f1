"""Whatever fails on a real cluster, a job ends with the weights of an undisturbed run."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from real_job import Kubectl, RealJob, checkpointed, digits, said, sized, until

from cluster.local import LocalCluster
from cluster.node import NODE

EPOCHS = 75
EVERY_EPOCHS = EPOCHS // 5
KUBELET_STOPPED_SECONDS, API_SERVER_STOPPED_SECONDS = 60, 30

MakeJob = Callable[..., RealJob]
Local = Callable[[str], str]


def example(name: str, **parts: Any) -> dict[str, Any]:
    """The digits job, long enough to inject a fault: five stages with 1, 2 and 4 workers."""
    return digits(name, EPOCHS, **parts)


FIRST, SECOND, THIRD, FOURTH = (sum(45 * EVERY_EPOCHS // 2**n for n in range(stage)) for stage in range(4))
"""The approximate first updates of the stages."""


@pytest.fixture
def undisturbed(local_sha256: Local) -> str:
    """The SHA-256 of this job's weights trained locally; its name and checkpoint volume do not change it."""
    return local_sha256(yaml.safe_dump(example("undisturbed")))


@pytest.mark.fault("C01", "C11")
@pytest.mark.long
def test_a_worker_pod_is_deleted(job: MakeJob, undisturbed: str) -> None:
    digits = job(example("worker-deleted"))
    digits.reaches(SECOND + 50)

    digits.delete_pod("worker")

    assert undisturbed == digits.succeeds()["trainerStatus"]["weightsSha256"]


@pytest.mark.fault("C01", "C05")
@pytest.mark.long
def test_the_kernel_kills_a_worker(job: MakeJob, undisturbed: str, local: LocalCluster) -> None:
    """As when the node runs out of memory: SIGKILL, and the container exits with 137."""
    digits = job(example("worker-killed"))
    digits.reaches(SECOND + 50)
    pod = digits.pods("worker")[0]

    process_of(local, pod).send_signal(signal.SIGKILL)

    assert undisturbed == digits.succeeds()["trainerStatus"]["weightsSha256"]


def process_of(cluster: LocalCluster, pod: dict[str, Any]) -> psutil.Process:
    """Returns the init process of the pod's container."""
    container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    listed = [line.split() for line in cluster.ctr("tasks", "list").splitlines()]
    inside = next(int(line[1]) for line in listed if line[0] == container)
    first = cluster.first_process()
    assert first is not None
    below = [process for process in first.children(recursive=True) if inside_number(process.pid) == inside]
    assert 1 == len(below), (inside, below)
    return below[0]


def inside_number(pid: int) -> int:
    """Returns a process's id in the node's PID namespace, the second one listed; 0 if it has none or has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # one of another pod, which ended after the processes were listed
    numbers = next(line.split()[1:] for line in lines if line.startswith("NSpid:"))
    return int(numbers[1]) if len(numbers) > 1 else 0


@pytest.mark.fault("C04")
@pytest.mark.long
def test_the_trainer_pod_is_deleted(job: MakeJob, undisturbed: str, claim: str) -> None:
    """A new pod resumes from the checkpoint that the first one wrote on SIGTERM."""
    digits = job(example("trainer-deleted", **checkpointed(claim)))
    digits.reaches(SECOND + 50)
    before = digits.report()

    digits.delete_pod("trainer")

    until("a new trainer's report", lambda: digits.report()["start"] > before["start"], 180, digits.story)
    assert digits.report()["update"] >= before["update"]
    status = digits.succeeds()
    assert undisturbed == status["trainerStatus"]["weightsSha256"]
    assert 0 == status["restarts"], "a deleted pod does not count as a failure of the job"


@pytest.mark.fault("C04")
@pytest.mark.long
def test_the_trainer_pod_is_killed(job: MakeJob, undisturbed: str, claim: str, local: LocalCluster) -> None:
    """Without SIGTERM the last checkpoint is some updates old, and the new pod repeats them."""
    digits = job(example("trainer-killed", **checkpointed(claim)))
    digits.reaches(SECOND + 50)
    before, pod = digits.report(), digits.pods("trainer")[0]

    process_of(local, pod).send_signal(signal.SIGKILL)

    until("a new trainer's report", lambda: digits.report()["start"] > before["start"], 180, digits.story)
    assert digits.report()["update"] > 0
    status = digits.succeeds()
    assert undisturbed == status["trainerStatus"]["weightsSha256"]
    assert 1 == status["restarts"]


@pytest.mark.fault("B19", "C03")
@pytest.mark.long
def test_the_scheduler_pod_is_deleted(job: MakeJob, undisturbed: str, claim: str) -> None:
    digits = job(example("scheduler-deleted", **checkpointed(claim)))
    digits.reaches(SECOND + 50)

    digits.delete_pod("scheduler")

    assert undisturbed == digits.succeeds()["trainerStatus"]["weightsSha256"]


@pytest.mark.alone
@pytest.mark.fault("B02")
@pytest.mark.long
def test_the_operator_is_away_at_a_milestone(job: MakeJob, undisturbed: str, kubectl: Kubectl) -> None:
    """It is killed before the second stage and returns in the third; training does not wait for it."""

    def scaled(replicas: int) -> None:
        said(kubectl("--namespace", "batchgrowth-system", "scale", "deployment/batchgrowth", f"--replicas={replicas}"))

    digits = job(example("no-operator"))
    digits.reaches(SECOND // 3)
    scaled(0)
    try:
        pods = ("delete", "pod", "--selector=app.kubernetes.io/name=batchgrowth", "--grace-period=0", "--force")
        said(kubectl("--namespace", "batchgrowth-system", *pods))
        until("the third stage", lambda: digits.report()["stage"] == 2, 200, digits.story)
    finally:
        scaled(1)
    status = digits.succeeds()

    assert undisturbed == status["trainerStatus"]["weightsSha256"]
    assert [*range(status["stages"])] == [record["index"] for record in status["history"]]


@pytest.mark.alone
@pytest.mark.long
def test_the_kubelet_is_stopped_for_a_minute(job: MakeJob, undisturbed: str, local: LocalCluster) -> None:
    """The node looks dead, but its pods keep running."""
    digits = job(example("no-kubelet"))
    digits.reaches(SECOND // 2)

    suspend(local, "kubelet", KUBELET_STOPPED_SECONDS)

    assert undisturbed == digits.succeeds()["trainerStatus"]["weightsSha256"]
    node_is_ready(local)


def suspend(cluster: LocalCluster, server: str, seconds: float) -> None:
    """Suspends a server for some seconds."""
    process = cluster.process(server)
    assert process is not None
    process.suspend()
    try:
        time.sleep(seconds)
    finally:
        process.resume()


def node_is_ready(cluster: LocalCluster) -> None:
    said(cluster.kubectl("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=90s"))


@pytest.mark.alone
@pytest.mark.fault("B12")
@pytest.mark.long
def test_the_api_server_is_away_for_half_a_minute(job: MakeJob, undisturbed: str, local: LocalCluster) -> None:
    """The trainer cannot report progress, and does not wait for it."""
    digits = job(example("no-api"))
    digits.reaches(SECOND // 2)

    suspend(local, "kube-apiserver", API_SERVER_STOPPED_SECONDS)

    assert undisturbed == digits.succeeds()["trainerStatus"]["weightsSha256"]


@pytest.mark.fault("B27")
@pytest.mark.long
def test_suspended_and_resumed(job: MakeJob, undisturbed: str, volume: str) -> None:
    """The operator makes the claim, which keeps the state while the job has no pods, and goes with the job."""
    digits = job(example("suspended", **sized(volume)))
    digits.reaches(SECOND + 50)

    digits.suspend()
    suspended = digits.status
    assert "Suspended" == suspended["phase"]
    assert suspended["checkpoint"]["update"] >= SECOND + 50
    digits.patch(suspend=False)

    status = digits.succeeds()
    assert undisturbed == status["trainerStatus"]["weightsSha256"]
    assert 0 == status["restarts"]
    digits.in_namespace("delete", "batchgrowthjob", "suspended")
    until("the end of the claim", lambda: not digits.objects("persistentvolumeclaim"), 120, lambda: "it is there")


@pytest.mark.fault("A26", "C17")
@pytest.mark.long
def test_the_most_workers_are_changed_twice(job: MakeJob, undisturbed: str) -> None:
    """Down to one and up to three while it trains."""
    digits = job(example("bounds"))
    digits.reaches(SECOND + 20)
    bounds = example("bounds")["spec"]["workers"]

    digits.patch(workers=bounds | {"maximum": 1})
    until("training with one worker", lambda: digits.report()["workers"] == 1, 180, digits.story)
    digits.patch(workers=bounds | {"maximum": 3})
    until("training with more workers", lambda: digits.report()["workers"] > 1, 180, digits.story)

    assert undisturbed == digits.succeeds()["trainerStatus"]["weightsSha256"]
