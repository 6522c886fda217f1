"""A namespace with a running operator. Tests play the nodes and the other controllers."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from batchgrowth import names
from batchgrowth.contract.progress import Progress
from batchgrowth_operator.api.client import KINDS, Api
from batchgrowth_operator.seen.observed import Ref

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "operator_process.py"
IMAGE = "example/trainer:1"
JOB = Ref("BatchGrowthJob", "digits")
WORKERS = Ref("Deployment", "digits-workers")
TRAINER = Ref("Job", "digits-trainer")
CLUSTER = Ref("DaskCluster", "digits")
PLAN = Ref("ConfigMap", "digits-plan")
CHILDREN = [
    PLAN, Ref("ConfigMap", "digits-progress"), Ref("Secret", "digits-authority"), Ref("Secret", "digits-tls"),
    Ref("ServiceAccount", "digits-trainer"),
    Ref("Role", "digits-progress"), Ref("RoleBinding", "digits-progress"), Ref("NetworkPolicy", "digits"),
    CLUSTER, WORKERS, TRAINER,
]  # fmt: skip
CLAIM = Ref("PersistentVolumeClaim", "digits-checkpoints")
KEPT: dict[str, Any] = {"checkpoint": {"volume": {"size": "1Gi"}}}
"""The part of a spec by which a job has that claim besides."""
PATIENCE_SECONDS = 30

processes = multiprocessing.get_context("forkserver")


@dataclass
class Field:
    """A namespace, and what a test does in it. `start` starts an operator."""

    api: Api
    kubeconfig: Path
    namespace: str
    operators: list[Any] = field(default_factory=list)
    calls: Path | None = None

    def start(
        self,
        writes: int = 0,
        holder: str = "",
        calls: Path | None = None,
        log: Path | None = None,
        metrics_port: int = 0,
        operator_class: str = "",
        image: str = IMAGE,
    ) -> Any:
        self.calls = calls
        given = {
            "KUBECONFIG": str(self.kubeconfig),
            "NAMESPACE": self.namespace,
            "WRITES": writes,
            "HOLDER": holder,
            "CALLS": str(calls or ""),
            "LOG": str(log or ""),
            "METRICS_PORT": metrics_port,
            "OPERATOR_CLASS": operator_class,
            "IMAGE": image,
        }
        process = processes.Process(target=runpy.run_path, args=(str(SCRIPT),), kwargs={"init_globals": given})
        process.start()
        self.operators.append(process)
        return process

    def stop(self) -> None:
        for process in self.operators:
            process.terminate()
            process.join(20)
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)  # shows where each of its threads stands
                process.join(2)
            process.kill()
        self.operators.clear()

    def get(self, ref: Ref) -> Any:
        return self.api.get(ref, self.namespace)

    def patch(self, ref: Ref, body: dict[str, Any], subresource: str = "") -> None:
        kind = KINDS[ref.kind]
        path = kind.path(self.namespace, ref.name, subresource)
        self.api._send("patch", kind, path, body=body, content_type="application/merge-patch+json")

    def delete(self, ref: Ref) -> None:
        self.api.delete(ref, self.namespace, self.get(ref)["metadata"]["uid"], "Background")

    def apply(self, name: str = JOB.name, **spec: Any) -> None:
        job = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
        job["metadata"] |= {"name": name, "namespace": self.namespace}
        job["spec"] |= spec
        self.api._send("post", KINDS[JOB.kind], KINDS[JOB.kind].path(self.namespace), body=job)

    def report(self, update: int, pace: float = 1.0) -> None:
        """Writes the report that a trainer would write."""
        progress = Progress(
            update=update, updates=460, epoch=update / 45, epochs=30, stage=0, batch_size=32, learning_rate=0.05,
            workers=1, seconds_per_update=pace,
        )  # fmt: skip
        self.patch(Ref("ConfigMap", "digits-progress"), {"data": {names.PROGRESS_KEY: progress.to_json()}})

    def workers_come(self) -> None:
        wanted = self.get(WORKERS)["spec"]["replicas"]
        self.patch(WORKERS, {"status": {"replicas": wanted, "readyReplicas": wanted}}, "status")

    def make_scheduler(self) -> None:
        """Creates the missing parts of a DaskCluster, as the Dask operator does."""
        owner = self.get(CLUSTER)["metadata"]
        place = {"name": "digits-scheduler", "namespace": self.namespace, "labels": owner["labels"]}
        place["ownerReferences"] = [{"apiVersion": "v1", "kind": "x", "name": owner["name"], "uid": owner["uid"]}]
        pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        specs = {
            "Deployment": {"selector": {"matchLabels": {"a": "b"}}, "template": pod},
            "Service": {"ports": [{"port": 8786}]},
        }
        for kind, spec in specs.items():
            if self.get(Ref(kind, "digits-scheduler")) is None:
                self.api._send(
                    "post", KINDS[kind], KINDS[kind].path(self.namespace), body={"metadata": place, "spec": spec}
                )
        ready = {"status": {"replicas": 1, "readyReplicas": 1}}
        self.patch(Ref("Deployment", "digits-scheduler"), ready, "status")
        self.patch(CLUSTER, {"status": {"phase": "Running"}})

    def trainer_ends(self) -> None:
        said = {"status": "True", "lastTransitionTime": "2026-11-20T10:00:00Z", "lastProbeTime": None}
        conditions = [{"type": kind, **said} for kind in ("SuccessCriteriaMet", "Complete")]
        times = {"startTime": "2026-11-20T09:00:00Z", "completionTime": "2026-11-20T10:00:00Z"}
        self.patch(TRAINER, {"status": {"conditions": conditions, "succeeded": 1, **times}}, "status")

    def condition(self, kind: str) -> tuple[str, str]:
        status = (self.get(JOB) or {}).get("status", {})
        return next(((c["status"], c["reason"]) for c in status.get("conditions", ()) if c["type"] == kind), ("", ""))

    def replicas(self) -> int:
        return int((self.get(WORKERS) or {"spec": {"replicas": -1}})["spec"]["replicas"])

    def is_complete(self) -> bool:
        own = [CLAIM] if "volume" in self.get(JOB)["spec"]["checkpoint"] else []
        return all(self.get(ref) is not None for ref in [*CHILDREN, *own])

    def everything(self) -> list[Any]:
        return [self.get(ref) for ref in [JOB, *CHILDREN, CLAIM]]

    def rest(self) -> list[Any]:
        """All objects, once none has changed for a second."""
        before, since = self.everything(), time.monotonic()
        while time.monotonic() - since < 1:
            time.sleep(0.1)
            now = self.everything()
            if now != before:
                before, since = now, time.monotonic()
        return before


def until(holds: Callable[[], Any], wanted: Any = True, seconds: float = PATIENCE_SECONDS) -> None:
    """Waits until `holds()` returns `wanted`; fails after `seconds` with its last value."""
    end = time.monotonic() + seconds
    while (found := holds()) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    assert found == wanted


def live(ground: Field) -> None:
    """A job's life: begin, train, cross a milestone, end. Each step waits for what it needs, despite crashes."""
    ground.apply(**KEPT)
    until(ground.is_complete)
    ground.workers_come()
    until(lambda: ground.condition("Resizing"), ("False", "AtTarget"))
    ground.report(440)
    until(ground.replicas, 4)
    until(lambda: ground.condition("Resizing"), ("True", "ScalingUp"))
    ground.workers_come()
    until(lambda: ground.condition("Resizing"), ("False", "AtTarget"))
    ground.report(460)
    ground.trainer_ends()
    until(lambda: (ground.condition("Succeeded"), ground.get(WORKERS), ground.get(CLUSTER)),
          (("True", "Finished"), None, None))  # fmt: skip
