"""A BatchGrowthJob on a real cluster, for tests to drive and watch."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml
from kubernetes import client, config
from kubernetes.dynamic import DynamicClient

from cluster.local import LocalCluster
from cluster.network import API_PORT
from cluster.release import RESTRICTED, Cluster

ROOT = Path(__file__).parents[2]
Object = dict[str, Any]


def values_of(cluster: Cluster) -> Object:
    """Returns the chart values of this tier: one of its jobs names an account that does not exist.

    In this machine's cluster the machine alone reads metrics, and jobs connect to nothing but the API server and DNS.
    """
    values: Object = {"jobs": {"serviceAccounts": ["nobody"]}}
    if isinstance(cluster, LocalCluster):
        machine = {"ipBlock": {"cidr": cluster.network.host_range}}
        api_server = {"to": [machine], "ports": [{"port": API_PORT, "protocol": "TCP"}]}
        values["networkPolicy"] = {"metricsFrom": [machine], "restrictEgress": True, "egress": [api_server]}
    return values


class Kubectl(Protocol):
    """Runs kubectl; returns its output, whatever its exit code."""

    def __call__(self, *arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """`given` goes to its standard input."""


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Returns a command's standard output; fails unless it succeeded."""
    assert 0 == done.returncode, done.stderr
    return done.stdout


KINDS = {
    "batchgrowthjob": "apis/batchgrowth.dev/v1alpha1",
    "configmap": "api/v1",
    "daskcluster": "apis/kubernetes.dask.org/v1",
    "deployment": "apis/apps/v1",
    "persistentvolumeclaim": "api/v1",
    "pod": "api/v1",
    "service": "api/v1",
}
"""The API of each kind that tests poll."""


class Reader:
    """Reads objects in this process: kubectl, started for every look, would take the processors from the pods."""

    def __init__(self, connection: client.ApiClient) -> None:
        self._dynamic = DynamicClient(connection, discoverer=lambda *_: None)  # type: ignore[no-untyped-call]

    def get(self, namespace: str, kind: str, name: str) -> Object:
        """Return one object. Raises DynamicApiError if it does not exist."""
        return self._answer(f"{self._path(namespace, kind)}/{name}")

    def objects(self, namespace: str, kind: str, labels: str = "", fields: str = "") -> list[Object]:
        """Return the namespace's objects of a kind that these selectors match."""
        selectors = {"label_selector": labels, "field_selector": fields}
        found: list[Object] = self._answer(self._path(namespace, kind), **selectors)["items"]
        return found

    @staticmethod
    def _path(namespace: str, kind: str) -> str:
        return f"/{KINDS[kind]}/namespaces/{namespace}/{kind}s"

    def _answer(self, path: str, **options: str) -> Object:
        response = self._dynamic.request("get", path, serialize=False, **options)
        answer: Object = json.loads(response.data)
        return answer


@contextmanager
def reading(kubeconfig: Path) -> Iterator[Reader]:
    """A reader of the kubeconfig's cluster, whose connections are closed at the end."""
    configuration = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    with client.ApiClient(configuration) as connection:
        yield Reader(connection)


@contextmanager
def new_namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of a random name, which admits restricted pods only; it is deleted at the end."""
    name = f"test-{secrets.token_hex(3)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}
    said(kubectl("create", "--filename", "-", given=json.dumps(body)))
    yield name
    said(kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false"))


CONSTANT: Object = {"initial": 256, "maximum": 512, "shard": 32, "growth": {"type": "Constant"}}
"""A batch that does not grow, and so asks for no further worker."""


def until(what: str, ready: Callable[[], Any], seconds: float, explain: Callable[[], str] = str) -> Any:
    """Polls until `ready()` is true and returns its value; fails with the explanation on timeout.

    It rests twice as long as a look took: what a look costs, such as a kubectl process, is taken from the pods.
    """
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        answer = ready()
        if answer:
            return answer
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s\n{explain()}"
        time.sleep(max(0.1, 2 * (time.monotonic() - began)))


def checkpointed(claim: str) -> Object:
    """Returns the part of a spec that keeps two checkpoints in that claim, one every other second."""
    return {"checkpoint": {"volume": {"claimName": claim}, "everySeconds": 2, "keep": 2}}


def sized(storage_class: str) -> Object:
    """Returns the same for a claim that the operator makes, bound to the volume of that class."""
    own = {"size": "1Gi", "storageClassName": storage_class}
    return {"checkpoint": checkpointed("")["checkpoint"] | {"volume": own}}


def accuracy(status: Object) -> float:
    """Returns the last accuracy in a job's status."""
    metrics = status["trainerStatus"]["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "accuracy"))


CONDITIONS = 'jsonpath={range .status.conditions[*]}{.type} {.status} {.reason}: {.message}{"\\n"}{end}'
"""The output of kubectl that gives a line for each condition."""
SMALL: Object = {"requests": {"cpu": "20m"}}
"""The requests of a pod, so that the jobs of several tests fit on a node with two CPUs at the same time."""


def example_job(name: str = "digits", **parts: Any) -> Object:
    """The digits job of the examples, in small pods, with parts of its spec replaced."""
    body: Object = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    body["metadata"]["name"] = name
    body["spec"] |= {"resources": SMALL, **parts}
    return body


def digits(name: str, epochs: int, **parts: Any) -> Object:
    """The digits job in five stages, each of a fifth of the epochs, with 1, 2 and 4 workers."""
    body = example_job(name, epochs=epochs)
    body["spec"]["batch"]["growth"]["geometric"]["everyEpochs"] = epochs // 5
    body["spec"].update(parts)
    return body


@dataclass(frozen=True, slots=True)
class RealJob:
    """One job of one namespace, whether it exists or not."""

    kubectl: Kubectl
    reader: Reader
    namespace: str
    name: str

    def in_namespace(self, *arguments: str | Path, given: str | None = None) -> str:
        """Runs kubectl in this namespace; fails unless it succeeds."""
        return said(self.kubectl("--namespace", self.namespace, *arguments, given=given))

    def objects(self, kind: str, *, labels: str = "", fields: str = "") -> list[Object]:
        """Returns the namespace's objects of a kind that these selectors match."""
        return self.reader.objects(self.namespace, kind, labels, fields)

    def get(self) -> Object:
        """Reads the job from the API server."""
        return self.reader.get(self.namespace, "batchgrowthjob", self.name)

    @property
    def status(self) -> Object:
        """Empty before the operator has seen the job."""
        found: Object = self.get().get("status") or {}
        return found

    @property
    def update(self) -> int:
        """Updates done by the trainer's own last report, which the status follows with a delay."""
        return int(self.report().get("update", 0))

    def report(self) -> Object:
        """The trainer's last report; empty before the first."""
        listed = self.objects("configmap", fields=f"metadata.name={self.name}-progress")
        text = (listed[0].get("data") or {}).get("progress.json") if listed else None
        return dict(json.loads(text)) if text else {}

    def condition(self, kind: str) -> Object:
        """The condition of that type; empty if absent."""
        return next((c for c in self.status.get("conditions", ()) if c["type"] == kind), {})

    def pods(self, role: str) -> list[Object]:
        """The job's pods of a role, without terminating ones."""
        wanted = f"batchgrowth.dev/job={self.name},batchgrowth.dev/role={role}"
        if role == "scheduler":
            wanted = f"dask.org/cluster-name={self.name},dask.org/component=scheduler"
        return [pod for pod in self.objects("pod", labels=wanted) if "deletionTimestamp" not in pod["metadata"]]

    def delete_pod(self, role: str) -> None:
        """Deletes the first pod of a role, and does not wait for its end."""
        self.in_namespace("delete", "pod", self.pods(role)[0]["metadata"]["name"], "--wait=false")

    def suspend(self) -> None:
        """Suspends the job, and waits until it has no pods."""
        self.patch(suspend=True)
        roles = ("worker", "trainer", "scheduler")
        until("a job without pods", lambda: not any(map(self.pods, roles)), 180, self.story)

    def patch(self, **spec: Any) -> None:
        """Patches the spec as a user does."""
        patch = json.dumps({"spec": spec})
        self.in_namespace("patch", "batchgrowthjob", self.name, "--type", "merge", "--patch", patch)

    def reaches(self, update: int, seconds: float = 480) -> None:
        """Returns when the job has done that many updates; fails if it ends before or times out."""

        def there() -> bool:
            assert self.status.get("phase") != "Failed", self.story()
            return self.update >= update

        until(f"update {update} of {self.name}", there, seconds, self.story)

    def succeeds(self, seconds: float = 480) -> Object:
        """Waits until the job succeeds and returns its status; fails if the job fails."""

        def over() -> Object:
            status = self.status
            assert status.get("phase") != "Failed", self.story()
            return status if status.get("phase") == "Succeeded" else {}

        found: Object = until(f"the end of {self.name}", over, seconds, self.story)
        return found

    def story(self) -> str:
        """Returns everything that may explain the job's state, what explains most of all at the end.

        The middle of a long output may be left out where it is read.
        """
        described = [
            self.kubectl("--namespace", "batchgrowth-system", "logs", f"deployment/{operator}", "--tail", "20")
            for operator in ("batchgrowth-dask-kubernetes-operator", "batchgrowth")
        ]
        commands: Sequence[Sequence[str]] = (
            ("logs", f"deployment/{self.name}-workers", "--tail", "20"),
            ("logs", f"job/{self.name}-trainer", "--tail", "40"),
            ("get", "batchgrowthjob", self.name, "--output", "yaml"),
            ("get", "events", "--sort-by", ".lastTimestamp"),
            ("get", "pods,deployments,jobs", "--output", "wide"),
            ("get", "batchgrowthjob", self.name, "--output", CONDITIONS),
        )
        described += [self.kubectl("--namespace", self.namespace, *command) for command in commands]
        return "\n\n".join((done.stdout or done.stderr)[-6000:] for done in described)
