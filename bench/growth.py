"""`python -m bench.growth`: how long new workers take to be Ready after a milestone, beside a bare `kubectl scale`.

A job is applied on the cluster of `make cluster`. Its workers, one GPU each, run on kwok's simulated nodes, where pods
are Ready at once, so that only the time of the operator and of Kubernetes is measured. Simulated workers cannot train,
so this module writes the progress reports, and the job's own trainer never starts. In the same round, a copy of the
Deployment that no operator watches grows by an API write of `replicas`.
"""

from __future__ import annotations

import json
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from batchgrowth import names
from batchgrowth.contract.progress import Progress
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.schedule.plan import BatchDecision, make_plan
from batchgrowth.schedule.stages import Plan, Stage
from batchgrowth.spec import JobSpec
from kubernetes import client, config, watch
from rich.console import Console
from rich.table import Table

from cluster import fake_nodes, release
from cluster.local import LocalCluster, local_cluster

GPUS, NODES = 8, 32
READY_SECONDS = 120
GROUP_VERSION = "batchgrowth.dev", "v1alpha1"
TEMPLATE = {
    "spec": {
        "nodeSelector": {"type": "kwok"},
        "tolerations": [{"key": fake_nodes.ANNOTATION, "operator": "Exists"}],
        "containers": [{"name": "worker", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    }
}


DECLARED = {"type": "Geometric", "geometric": {"factor": "5", "everyEpochs": 50}}
MEASURED = {"type": "NoiseScale", "looks": {"everyUpdates": 1000, "mostChange": "5"}}


def manifest(maximum: int, growth: dict[str, Any] = DECLARED) -> dict[str, Any]:
    """A job with 128 examples per worker, whose batch grows by factors of 5 at most from 128 to `maximum`."""
    return {
        "apiVersion": "/".join(GROUP_VERSION),
        "kind": "BatchGrowthJob",
        "metadata": {"name": f"to-{maximum}"},
        "spec": {
            "workload": {"entrypoint": "batchgrowth_trainer.workloads.cifar10_wrn:workload", "examples": 50000},
            "epochs": 200,
            "batch": {
                "initial": 128,
                "maximum": maximum,
                "shard": 64,
                "growth": growth,
            },
            "learningRate": {"initial": "0.1", "rule": "DecayPastMaximum"},
            "optimizer": {"type": "SGD", "sgd": {"momentum": "0.9"}},
            "workers": {"examplesPerWorker": 128, "minimum": 1, "maximum": 125, "template": TEMPLATE},
            "checkpoint": {"volume": {"claimName": "that-is-not-there"}},  # the trainer's pod waits for it
        },
    }


@dataclass(frozen=True, slots=True)
class Api:
    """The API server, through the client library that the operator uses."""

    core: client.CoreV1Api
    apps: client.AppsV1Api
    custom: client.CustomObjectsApi
    namespace: str

    def deployments(self, **selectors: str) -> Iterator[Any]:
        """The Deployments, and each again when it changes, for READY_SECONDS."""
        stream: Any = watch.Watch().stream  # type: ignore[no-untyped-call]
        for event in stream(
            self.apps.list_namespaced_deployment, self.namespace, timeout_seconds=READY_SECONDS, **selectors
        ):
            yield event["object"]

    @contextmanager
    def workers_ready(self, deployment: str, count: int) -> Iterator[list[float]]:
        """Waits after the block, which resizes the Deployment, until `count` pods are ready; appends the seconds."""
        waited: list[float] = []
        began = time.monotonic()
        yield waited
        for found in self.deployments(field_selector=f"metadata.name={deployment}"):
            status, wanted = found.status, found.spec.replicas
            if (wanted, status.ready_replicas or 0, status.replicas or 0) == (count, count, count):
                waited.append(time.monotonic() - began)
                return
        raise TimeoutError(f"{deployment} did not reach {count} ready workers in {READY_SECONDS} s")

    def scale(self, deployment: str, replicas: int) -> None:
        """Scales the Deployment as `kubectl scale` does."""
        self.apps.patch_namespaced_deployment_scale(deployment, self.namespace, {"spec": {"replicas": replicas}})


def api_of(cluster: LocalCluster, namespace: str) -> Api:
    """The cluster's API server, with an administrator's rights."""
    made = config.new_client_from_config(str(cluster.kubeconfig))  # type: ignore[no-untyped-call]
    return Api(client.CoreV1Api(made), client.AppsV1Api(made), client.CustomObjectsApi(made), namespace)


@dataclass(frozen=True, slots=True)
class PlayedJob:
    """A job whose progress this object reports, in place of its trainer, with the decisions of a measured growth."""

    api: Api
    name: str
    spec: JobSpec
    decisions: tuple[BatchDecision, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan of the spec and all decisions."""
        return make_plan(self.spec, self.decisions)

    def cross(self, stage: Stage, start: int) -> None:
        """Report that the stage begins; a later `start` overrides the reports of earlier ones."""
        known = tuple(decision for decision in self.decisions if decision.update <= stage.first_update)
        progress = Progress(
            update=stage.first_update, updates=make_plan(self.spec, known).updates, epoch=float(stage.epoch_from),
            epochs=self.spec.epochs, stage=stage.index, batch_size=stage.batch_size,
            learning_rate=stage.learning_rate, workers=stage.workers, start=start, decisions=known,
        )  # fmt: skip
        body = {"data": {names.PROGRESS_KEY: progress.to_json()}}
        self.api.core.patch_namespaced_config_map(names.progress(self.name), self.api.namespace, body)

    def status(self) -> dict[str, Any]:
        """The job's status, which the operator wrote."""
        path = (*GROUP_VERSION, self.api.namespace, "batchgrowthjobs", self.name)
        found: Any = self.api.custom.get_namespaced_custom_object(*path)
        return dict(found["status"])

    def grown(self, stage: Stage, start: int) -> float:
        """The seconds from the report that the stage begins until all its workers are ready."""
        with self.api.workers_ready(names.workers(self.name), stage.workers) as seconds:
            self.cross(stage, start)
        return seconds[0]


def play(api: Api, body: dict[str, Any], decisions: tuple[BatchDecision, ...] = ()) -> PlayedJob:
    """The job of that manifest, applied, once its first worker is ready."""
    api.custom.create_namespaced_custom_object(*GROUP_VERSION, api.namespace, "batchgrowthjobs", body)
    name = body["metadata"]["name"]
    for deployment in api.deployments():
        if deployment.metadata.name == names.workers(name) and deployment.status.ready_replicas:
            return PlayedJob(api, name, read_manifest(json.dumps(body)).spec, decisions)
    raise TimeoutError(f"{name} has no worker after {READY_SECONDS} s")


def copy_of(api: Api, deployment: str) -> str:
    """The name of a new Deployment of one such pod, which no operator owns."""
    found: Any = api.apps.read_namespaced_deployment(deployment, api.namespace)
    own = {"batchgrowth.dev/copy": deployment}
    found.metadata = client.V1ObjectMeta(name=f"{deployment}-copy")
    found.spec.replicas, found.spec.selector = 1, client.V1LabelSelector(match_labels=own)
    found.spec.template.metadata.labels = own
    found.status = None
    with api.workers_ready(f"{deployment}-copy", 1):
        api.apps.create_namespaced_deployment(api.namespace, found)
    return f"{deployment}-copy"


@contextmanager
def namespace_of_its_own(cluster: LocalCluster) -> Iterator[Api]:
    """A temporary namespace for the benchmark, on a cluster with enough fake nodes."""
    given = cluster.kubectl("apply", "--filename", "-", given=fake_nodes.manifests(NODES, GPUS))
    assert given.returncode == 0, given.stderr
    api = api_of(cluster, f"growth-{secrets.token_hex(3)}")
    api.core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=api.namespace)))
    try:
        yield api
    finally:
        api.core.delete_namespace(api.namespace)


Figures = dict[str, tuple[list[float], list[float]]]


def measure(api: Api, job: PlayedJob, rounds: int) -> Figures:
    """By step, the seconds with the operator and with bare scaling, measured alternately, once each per round."""
    copy, figures = copy_of(api, names.workers(job.name)), Figures()
    stages = [stage for before, stage in zip(job.plan.stages, job.plan.stages[1:], strict=False)
              if stage.workers > before.workers]  # fmt: skip
    for turn in range(rounds):
        before = job.plan.stages[0]
        for stage in stages:
            ours, bare = figures.setdefault(f"{before.workers} → {stage.workers}", ([], []))
            for own in (True, False) if turn % 2 else (False, True):
                if own:
                    ours.append(job.grown(stage, 2 * turn + 1))
                else:
                    with api.workers_ready(copy, stage.workers) as seconds:
                        api.scale(copy, stage.workers)
                    bare.append(seconds[0])
            before = stage
        with api.workers_ready(copy, 1):
            api.scale(copy, 1)
        job.grown(job.plan.stages[0], 2 * turn + 2)
    return figures


def table(figures: Figures) -> Table:
    """A row per step: min, median and max of its seconds, and the ratio of the medians."""
    made = Table("workers", "operator (s)", "bare scale (s)", "ratio", title="from the milestone to all Ready")
    for step, (ours, bare) in figures.items():
        ratio = statistics.median(ours) / statistics.median(bare)
        made.add_row(step, _spread(ours), _spread(bare), f"{ratio:.2f}")
    return made


def _spread(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.2f} / {statistics.median(seconds):.2f} / {max(seconds):.2f}"


def bench(rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds of each job.")] = 5) -> None:
    """Measure how long new workers take to be Ready after a milestone, beside a bare `kubectl scale`."""
    cluster = local_cluster()
    if not cluster.is_up():
        raise typer.BadParameter("no cluster is up; `make cluster` starts one")
    release.install(cluster)
    for maximum in (5120, 16000):
        with namespace_of_its_own(cluster) as api:
            Console().print(f"batch 128 → {maximum}", table(measure(api, play(api, manifest(maximum)), rounds)))


if __name__ == "__main__":
    typer.run(bench)
