"""A job on a real API server: columns, scale, status, and what may change once it has started."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.manifest.crd import COLUMNS, IMMUTABLE, LONGER
from batchgrowth.spec import MATHEMATICS

ROOT = Path(__file__).parents[2]
Kubectl = Callable[..., subprocess.CompletedProcess[str]]
Digits = Callable[[], Any]

OTHER_MATHEMATICS = {
    "seed": 1,
    "workload.entrypoint": "other:workload",
    "workload.arguments": {"hidden": "32"},
    "workload.examples": 1436,
    "initialWeights": {"path": "runs/pretrained"},
    "epochs": 29,
    "batch": {"maximum": 1024},
    "learningRate": {"initial": "0.06"},
    "optimizer": {"sgd": {"momentum": "0.8"}},
    "precision": "BFloat16",
    "exchange.compression": "Int8",
    "compile": True,
    "deterministic": False,
    "workers.threads": 2,
    "evaluation.stopEarly": {"metric": "loss", "mode": "Minimize", "patience": 3},
}
SPEED = {
    "workers.minimum": 2,
    "workers.maximum": 3,
    "workers.sameArithmetic": "Required",
    "workers.template": {"spec": {"nodeSelector": {"pool": "gpu"}}},
    "exchange.timeoutSeconds": 30,
    "checkpoint.everySeconds": 60,
    "evaluation.everyEpochs": 2,
    "suspend": True,
    "activeDeadlineSeconds": 600,
    "restarts.limit": 5,
    "clusterRetention": "Retain",
}
TRAINING = {
    "phase": "Training",
    "batch": {"current": 128},
    "workers": {"ready": 2},
    "trainerStatus": {
        "epoch": "10.5",
        "loss": "0.123",
        "progressPercentage": 64,
        "estimatedRemainingSeconds": 17,
    },
}


def below(path: str, value: object) -> dict[str, Any]:
    """A merge patch of one field of the spec."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return {"spec": value}


def at(job: Any, path: str) -> Any:
    """A field of the spec."""
    value = job["spec"]
    for name in path.split("."):
        value = value.get(name)
    return value


def patch(kubectl: Kubectl, change: object, *more: str) -> subprocess.CompletedProcess[str]:
    """A merge patch of the job."""
    return kubectl("patch", "bgj", "digits", "--type=merge", "-p", json.dumps(change), *more)


@pytest.fixture
def started(kubectl: Kubectl, digits: Digits) -> Digits:
    """The job after the operator has set its start time."""
    written = patch(kubectl, {"status": {"startTime": "2026-01-01T00:00:00Z"}}, "--subresource=status")
    assert (written.returncode, written.stderr) == (0, "")
    return digits


def test_columns(kubectl: Kubectl, digits: Digits) -> None:
    """Name and the eight columns, filled from the status."""
    assert patch(kubectl, {"status": TRAINING}, "--subresource=status").returncode == 0
    head, row = kubectl("get", "bgj").stdout.splitlines()
    assert ["NAME", *(name.upper() for name, *_ in COLUMNS)] == head.split()
    assert row.split()[:-1] == ["digits", "Training", "128", "2", "10.5", "0.123", "64", "17"]


def test_scale(kubectl: Kubectl, digits: Digits) -> None:
    """`kubectl scale` sets the upper bound of the workers, within the bounds of the schema."""
    scaled = kubectl("scale", "bgj/digits", "--replicas=3")
    refused = kubectl("scale", "bgj/digits", "--replicas=0")
    assert (scaled.returncode, digits()["spec"]["workers"]["maximum"]) == (0, 3)
    assert refused.returncode == 1
    assert "spec.workers.maximum" in refused.stderr


def test_scale_reads_the_status(kubectl: Kubectl, digits: Digits) -> None:
    """An autoscaler sees the ready workers and their selector."""
    status = {"workers": {"ready": 2, "selector": "batchgrowth.dev/job=digits"}}
    assert patch(kubectl, {"status": status}, "--subresource=status").returncode == 0
    path = "/apis/batchgrowth.dev/v1alpha1/namespaces/default/batchgrowthjobs/digits/scale"
    scale = json.loads(kubectl("get", "--raw", path).stdout)
    assert scale["spec"] == {"replicas": 4}
    assert scale["status"] == {"replicas": 2, "selector": "batchgrowth.dev/job=digits"}


@pytest.mark.fault("A29")
def test_a_user_cannot_write_the_status(kubectl: Kubectl, digits: Digits) -> None:
    """A status in a manifest is dropped; only the subresource takes it."""
    patch(kubectl, {"status": {"phase": "Succeeded"}})
    assert "phase" not in digits().get("status", {})


def test_an_exchange_with_replicas_belongs_to_the_mathematics(kubectl: Kubectl, started: Digits) -> None:
    """Others may change while the job trains, and an exchange with replicas be chosen before it starts."""
    assert patch(kubectl, below("exchange", {"type": "GatherScatter"})).returncode == 0
    refused = patch(kubectl, below("exchange", {"type": "LocalSGD"}))
    assert refused.returncode == 1
    assert f"spec.exchange.type: Invalid value: {IMMUTABLE}" in refused.stderr.replace('"object": ', "")
    assert started()["spec"]["exchange"]["type"] == "GatherScatter"


@pytest.mark.parametrize(
    "change", [{"type": "AllReduce", "gossip": None}, {"gossip": {"graph": "Ring"}}, {"gossip": None}]
)
def test_what_an_exchange_with_replicas_is_given_stays(kubectl: Kubectl, digits: Digits, change: Any) -> None:
    chosen = {"type": "Gossip", "gossip": {"replicas": 8}}
    assert patch(kubectl, below("exchange", chosen)).returncode == 0
    patch(kubectl, {"status": {"startTime": "2026-01-01T00:00:00Z"}}, "--subresource=status")
    assert patch(kubectl, below("exchange.timeoutSeconds", 30)).returncode == 0
    refused = patch(kubectl, below("exchange", change))
    assert refused.returncode == 1
    assert IMMUTABLE in refused.stderr
    assert digits()["spec"]["exchange"].items() >= {"type": "Gossip", "timeoutSeconds": 30}.items()


def test_the_status_writer_cannot_write_the_spec(kubectl: Kubectl, digits: Digits) -> None:
    """A write to the subresource changes the status alone, and not the generation."""
    patch(kubectl, below("epochs", 7) | {"status": {"phase": "Training"}}, "--subresource=status")
    job = digits()
    assert (job["spec"]["epochs"], job["status"]["phase"], job["metadata"]["generation"]) == (30, "Training", 1)


def test_all_of_the_mathematics_is_tried() -> None:
    assert set(OTHER_MATHEMATICS) == set(MATHEMATICS)


@pytest.mark.fault("A27")
@pytest.mark.parametrize("path", OTHER_MATHEMATICS)
def test_mathematics_may_change_before_the_start(kubectl: Kubectl, digits: Digits, path: str) -> None:
    changed = patch(kubectl, below(path, OTHER_MATHEMATICS[path]))
    assert (changed.returncode, changed.stderr) == (0, "")
    assert changed.stdout.endswith(" patched\n")


@pytest.mark.fault("A25")
@pytest.mark.parametrize("path", OTHER_MATHEMATICS)
def test_mathematics_is_immutable_after_the_start(kubectl: Kubectl, started: Digits, path: str) -> None:
    before = started()["spec"]
    refused = patch(kubectl, below(path, OTHER_MATHEMATICS[path]))
    assert refused.returncode == 1
    message = LONGER if path == "epochs" else IMMUTABLE
    assert f"spec.{path}: Invalid value: {message}" in refused.stderr
    assert before == started()["spec"]


@pytest.mark.fault("N05")
def test_epochs_may_grow_until_the_end(kubectl: Kubectl, started: Digits) -> None:
    grown = patch(kubectl, below("epochs", 31))
    assert (grown.returncode, grown.stderr) == (0, "")
    assert started()["spec"]["epochs"] == 31
    patch(kubectl, {"status": {"phase": "Rejected"}}, "--subresource=status")
    taken_back = patch(kubectl, below("epochs", 30))
    assert (taken_back.returncode, taken_back.stderr) == (0, "")
    ended = patch(kubectl, {"status": {"completionTime": "2026-01-01T01:00:00Z"}}, "--subresource=status")
    assert (ended.returncode, ended.stderr) == (0, "")

    refused = patch(kubectl, below("epochs", 32))

    assert f"spec.epochs: Invalid value: {LONGER}" in refused.stderr


@pytest.mark.fault("A25")
@pytest.mark.parametrize("path", SPEED)
def test_speed_may_change_after_the_start(kubectl: Kubectl, started: Digits, path: str) -> None:
    changed = patch(kubectl, below(path, SPEED[path]))
    assert (changed.returncode, changed.stderr) == (0, "")
    assert SPEED[path] == at(started(), path)


def test_an_early_end_fixes_when_evaluations_are(kubectl: Kubectl, digits: Digits) -> None:
    stop = {"metric": "loss", "mode": "Minimize", "patience": 3}
    for change, more in (
        (below("evaluation.stopEarly", stop), ()),
        ({"status": {"startTime": "2026-01-01T00:00:00Z"}}, ("--subresource=status",)),
        (below("evaluation.keepBest", {"metric": "loss", "mode": "Minimize"}), ()),
    ):
        changed = patch(kubectl, change, *more)
        assert (changed.returncode, changed.stderr) == (0, "")
    for path, change in (("everyEpochs", below("evaluation.everyEpochs", 2)),
                         ("stopEarly", below("evaluation.stopEarly.patience", 4)),
                         ("stopEarly", below("evaluation.stopEarly", None))):  # fmt: skip
        refused = patch(kubectl, change)
        assert f"spec.evaluation.{path}: Invalid value: {IMMUTABLE}" in refused.stderr
    assert {"everyEpochs": 1, "keepBest": {"metric": "loss", "mode": "Minimize"},
            "stopEarly": {**stop, "minimumChange": "0"}} == at(digits(), "evaluation")  # fmt: skip


@pytest.mark.parametrize("shard", [None, 32])
def test_examples_per_worker_may_change_after_the_start_if_there_is_a_shard(
    kubectl: Kubectl, digits: Digits, shard: int | None
) -> None:
    """Without a shard it is the shard's size, which is part of the mathematics."""
    for change, more in (
        ({"spec": {"batch": {"shard": shard}}}, ()),
        ({"status": {"startTime": "2026-01-01T00:00:00Z"}}, ("--subresource=status",)),
    ):
        assert patch(kubectl, change, *more).returncode == 0

    changed = patch(kubectl, below("workers.examplesPerWorker", 64))

    assert (shard is not None) == (changed.returncode == 0)
    assert (64 if shard else 128) == at(digits(), "workers.examplesPerWorker")
    assert bool(shard) != (f"spec.workers.examplesPerWorker: Invalid value: {IMMUTABLE}" in changed.stderr)


def test_applied_twice_is_applied_once(kubectl: Kubectl, digits: Digits) -> None:
    """Defaults filled in by the server do not count as a change."""
    before = digits()["metadata"]
    assert kubectl("apply", "-f", ROOT / "examples" / "digits.yaml").returncode == 0
    after = digits()["metadata"]
    assert (before["generation"], before["resourceVersion"]) == (after["generation"], after["resourceVersion"])


@pytest.mark.fault("O07")
@pytest.mark.parametrize(("way", "kept"), [((), {}), (("--server-side", "--force-conflicts"), {"livenessProbe": None})])
def test_a_null_of_the_template_survives_a_server_side_apply(
    kubectl: Kubectl, digits: Digits, tmp_path: Path, way: tuple[str, ...], kept: Any
) -> None:
    job = digits()
    container = {"name": "worker", "livenessProbe": None}
    job["spec"]["workers"]["template"] = {"spec": {"containers": [container]}}
    manifest = {name: job[name] for name in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "digits"}}
    (tmp_path / "job.json").write_text(json.dumps(manifest))

    applied = kubectl("apply", *way, "-f", tmp_path / "job.json")

    assert (applied.returncode, applied.stderr) == (0, "")
    assert at(digits(), "workers.template")["spec"]["containers"] == [{"name": "worker", **kept}]
