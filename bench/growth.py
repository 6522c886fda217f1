"""`python -m bench.growth`: how long new workers take to be Ready after a milestone, beside a bare `kubectl scale`.

A job is applied on the cluster of `make cluster`. Its workers, one GPU each, run on kwok's simulated nodes, where pods
are Ready at once, so that only the time of the operator and of Kubernetes is measured. Simulated workers cannot train,
so this module writes the progress reports, and the job's own trainer never starts. In the same round, a copy of the
Deployment that no operator watches grows by an API write of `replicas`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import typer
from batchgrowth import names
from batchgrowth.contract.progress import Progress
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import BatchDecision, Plan, Stage, make_plan
from batchgrowth.spec import JobSpec
from kubernetes import client, config, watch

from bench.tables import cells, show, spread, turned
from cluster import fake_nodes, release
from cluster.local import LocalCluster, local_cluster

GPUS = 8
NODES = 32
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
    """Return a job with 128 examples per worker, whose batch grows by factors of 5 at most from 128 to `maximum`."""
    return {
        "apiVersion": "/".join(GROUP_VERSION),
        "kind": "BatchGrowthJob",
        "metadata": {"name": f"to-{maximum}"},
        "spec": {
            "workload": {"entrypoint": "batchgrowth_trainer.workloads.cifar10_wrn:workload", "examples": 50000},
            "epochs": 200,
            "batch": {"initial": 128, "maximum": maximum, "shard": 64, "growth": growth},
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

    def deployments(self, **selectors: Any) -> Iterator[Any]:
        """Yield the Deployments, and each again when it changes, for READY_SECONDS."""
        stream: Any = watch.Watch().stream  # type: ignore[no-untyped-call]
        selectors |= {"timeout_seconds": READY_SECONDS}
        for event in stream(self.apps.list_namespaced_deployment, self.namespace, **selectors):
            yield event["object"]

    def seconds_to(self, deployment: str, count: int, resize: Callable[[], object]) -> float:
        """Resize the Deployment; return the seconds until `count` pods are ready."""
        began = time.monotonic()
        resize()
        for found in self.deployments(field_selector=f"metadata.name={deployment}"):
            status = found.status
            if found.spec.replicas == (status.replicas or 0) == (status.ready_replicas or 0) == count:
                return time.monotonic() - began
        raise TimeoutError(f"{deployment} did not reach {count} ready workers in {READY_SECONDS} s")

    def scaled(self, deployment: str, replicas: int) -> float:
        """Scale the Deployment as `kubectl scale` does; return the seconds until its pods are ready."""
        body = {"spec": {"replicas": replicas}}
        patch = self.apps.patch_namespaced_deployment_scale
        return self.seconds_to(deployment, replicas, lambda: patch(deployment, self.namespace, body))


@dataclass(frozen=True, slots=True)
class PlayedJob:
    """A job whose progress this object reports, in place of its trainer, with the decisions of a measured growth."""

    api: Api
    name: str
    spec: JobSpec
    decisions: tuple[BatchDecision, ...] = ()

    @property
    def plan(self) -> Plan:
        """Return the plan of the spec and all decisions."""
        return make_plan(self.spec, self.decisions)

    def status(self) -> dict[str, Any]:
        """Return the job's status, which the operator wrote."""
        path = (*GROUP_VERSION, self.api.namespace, "batchgrowthjobs", self.name)
        found: Any = self.api.custom.get_namespaced_custom_object(*path)
        return dict(found["status"])

    def grown(self, stage: Stage, start: int) -> float:
        """Report that the stage begins; return the seconds until all its workers are ready.

        A later `start` overrides the reports of earlier ones.
        """
        known = tuple(decision for decision in self.decisions if decision.update <= stage.first_update)
        progress = Progress(
            update=stage.first_update,
            updates=make_plan(self.spec, known).updates,
            epoch=float(stage.epoch_from),
            epochs=self.spec.epochs,
            stage=stage.index,
            batch_size=stage.batch_size,
            learning_rate=stage.learning_rate,
            workers=stage.workers,
            start=start,
            decisions=known,
        )
        body = {"data": {names.PROGRESS_KEY: progress.to_json()}}
        patch = self.api.core.patch_namespaced_config_map
        report = partial(patch, names.of(self.name).progress, self.api.namespace, body)
        return self.api.seconds_to(names.of(self.name).workers, stage.workers, report)


def play(api: Api, body: dict[str, Any], decisions: tuple[BatchDecision, ...] = ()) -> PlayedJob:
    """Apply the manifest, and return its job once its first worker is ready."""
    api.custom.create_namespaced_custom_object(*GROUP_VERSION, api.namespace, "batchgrowthjobs", body)
    name = body["metadata"]["name"]
    for deployment in api.deployments():
        if deployment.metadata.name == names.of(name).workers and deployment.status.ready_replicas:
            return PlayedJob(api, name, read_manifest(json.dumps(body)).spec, decisions)
    raise TimeoutError(f"{name} has no worker after {READY_SECONDS} s")


def copy_of(api: Api, deployment: str) -> str:
    """Create a Deployment of one such pod, which no operator owns; return its name."""
    found: Any = api.apps.read_namespaced_deployment(deployment, api.namespace)
    own = {"batchgrowth.dev/copy": deployment}
    found.metadata = client.V1ObjectMeta(name=f"{deployment}-copy")
    found.spec.replicas = 1
    found.spec.selector = client.V1LabelSelector(match_labels=own)
    found.spec.template.metadata.labels = own
    found.status = None
    api.seconds_to(f"{deployment}-copy", 1, lambda: api.apps.create_namespaced_deployment(api.namespace, found))
    return f"{deployment}-copy"


@contextmanager
def namespace_of_its_own(cluster: LocalCluster) -> Iterator[Api]:
    """Yield the API server of a cluster with enough fake nodes, with a namespace that is deleted in the end."""
    given = cluster.kubectl("apply", "--filename", "-", given=fake_nodes.manifests(NODES, GPUS))
    assert given.returncode == 0, given.stderr
    made = config.new_client_from_config(str(cluster.kubeconfig))  # type: ignore[no-untyped-call]
    namespace = f"growth-{secrets.token_hex(3)}"
    api = Api(client.CoreV1Api(made), client.AppsV1Api(made), client.CustomObjectsApi(made), namespace)
    api.core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=api.namespace)))
    try:
        yield api
    finally:
        api.core.delete_namespace(api.namespace)


def measure(api: Api, job: PlayedJob, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return, by step, the seconds with the operator and with bare scaling, in turns, once each per round."""
    copy = copy_of(api, names.of(job.name).workers)
    figures: dict[str, tuple[list[float], list[float]]] = {}
    first = job.plan.stages[0]
    grown = [stage for before, stage in pairwise(job.plan.stages) if stage.workers > before.workers]
    for number in range(rounds):
        for before, stage in pairwise([first, *grown]):
            ours, bare = figures.setdefault(f"{before.workers} → {stage.workers}", ([], []))
            for own in turned((False, True), number):
                if own:
                    ours.append(job.grown(stage, 2 * number + 1))
                else:
                    bare.append(api.scaled(copy, stage.workers))
        api.scaled(copy, 1)
        job.grown(first, 2 * number + 2)
    return figures


def main(rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds of each job.")] = 5) -> None:
    """Measure how long new workers take to be Ready after a milestone, beside a bare `kubectl scale`."""
    cluster = local_cluster()
    if not cluster.is_up():
        raise typer.BadParameter("no cluster is up; `make cluster` starts one")
    release.install(cluster)
    columns = ["workers", "operator, s: min", "median", "max", "bare scale, s: min", "median", "max"]
    columns.append("ratio of medians")
    for maximum in (5120, 16000):
        with namespace_of_its_own(cluster) as api:
            figures = measure(api, play(api, manifest(maximum)), rounds)
        rows = []
        for step, times in figures.items():
            ours, bare = map(spread, times)
            rows.append((step, *cells(ours, 2), *cells(bare, 2), f"{ours.middle / bare.middle:.2f}"))
        show(f"From the milestone to all Ready, batch 128 → {maximum}", columns, rows)


if __name__ == "__main__":
    typer.run(main)
