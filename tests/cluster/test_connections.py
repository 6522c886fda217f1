"""NetworkPolicies on a network that enforces them, with the egress that this tier's values list.

Every other test of this tier trains behind them too.
"""

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from batchgrowth.manifest.pod_limits import RESTRICTED_CONTAINER, RESTRICTED_POD
from batchgrowth_trainer.worker.addresses import host_and_port
from real_job import CONSTANT, Kubectl, RealJob, digits, new_namespace, said, until

from cluster import images
from cluster.local import LocalCluster
from cluster.network import API_PORT
from cluster.ports import bracketed

SCHEDULER_PORT, METRICS_PORT, PORT = 8786, 9090, 7000
PATIENCE_SECONDS = 3
LISTEN = f"""
import socket, time

server = socket.create_server(("::", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True)
time.sleep(3600)
"""
CONNECT = f"""
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def connects(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), {PATIENCE_SECONDS}).close()
    except TimeoutError:
        return False
    return True

with ThreadPoolExecutor() as threads:
    print(json.dumps(dict(zip(sys.argv[1:], threads.map(connects, sys.argv[1:])))))
"""
PORTS = """
import json

rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
places = [row[1].split(":") for row in rows if row[3] == "0A"]
print(json.dumps(sorted({int(port, 16) for host, port in places if host != "0100007F"})))
"""
MakeJob = Callable[..., RealJob]


def listener(name: str) -> dict[str, Any]:
    """A pod that belongs to no job, and listens."""
    container = {
        "name": name,
        "image": images.name_of("trainer"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", LISTEN],
        "securityContext": RESTRICTED_CONTAINER,
    }
    spec = {
        "containers": [container],
        "securityContext": RESTRICTED_POD,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Pod:
    """A pod that tries to connect."""

    def __init__(self, kubectl: Kubectl, namespace: str, name: str) -> None:
        self._kubectl, self._where, self._name = kubectl, ("--namespace", namespace), name

    @property
    def address(self) -> str:
        """Its IP address as URLs have it, once it is ready."""
        ready = ("wait", "pod", self._name, "--for=condition=Ready", "--timeout=120s")
        said(self._kubectl(*self._where, *ready))
        found = said(self._kubectl(*self._where, "get", "pod", self._name, "--output=jsonpath={.status.podIP}"))
        return bracketed(found)

    def ports(self) -> list[int]:
        """The ports at which it listens for others."""
        found: list[int] = json.loads(self._python(PORTS))
        return found

    def reaches(self, addresses: list[str]) -> set[str]:
        """Those of the addresses, each HOST:PORT, to which it can connect; at the others no packet arrives."""
        found: dict[str, bool] = json.loads(self._python(CONNECT, *addresses))
        return {address for address, connected in found.items() if connected}

    def _python(self, program: str, *arguments: str) -> str:
        return said(self._kubectl(*self._where, "exec", self._name, "--", "python", "-c", program, *arguments))


@pytest.fixture
def strange(kubectl: Kubectl) -> Iterator[str]:
    """Another namespace, without any policy."""
    with new_namespace(kubectl) as name:
        yield name


@pytest.fixture
def enforced(local: LocalCluster) -> None:
    """Skips the test where the kernel cannot enforce policies."""
    if not local.enforces_policies():
        pytest.skip(f"NetworkPolicies are not enforced here; {local.folder / 'policies.log'} says why")


@pytest.mark.fault("E01")
@pytest.mark.usefixtures("enforced")
def test_connections_that_no_policy_admits(
    kubectl: Kubectl, namespace: str, strange: str, job: MakeJob, local: LocalCluster
) -> None:
    """Pods of one job connect with each other and to the API server; nobody else connects to them.

    Neither can a pod beside them, the machine reads their metrics alone, and they reach no other pod or port.
    """
    pods = {"stranger": Pod(kubectl, strange, "stranger"), "neighbour": Pod(kubectl, namespace, "neighbour")}
    for where, name in ((strange, "stranger"), (namespace, "neighbour")):
        said(kubectl("--namespace", where, "create", "--filename", "-", given=json.dumps(listener(name))))
    workers = {"examplesPerWorker": 128, "minimum": 2, "maximum": 2}
    guarded = job(digits("guarded", 1_000_000, batch=CONSTANT, workers=workers))
    others = [f"{pod.address}:{PORT}" for pod in pods.values()]
    until("two workers", lambda: guarded.report().get("workers") == 2, 240, guarded.story)
    own = {
        role: [Pod(kubectl, namespace, pod["metadata"]["name"]) for pod in guarded.pods(role)]
        for role in ("worker", "scheduler", "trainer")
    }
    [scheduler], [trainer] = own["scheduler"], own["trainer"]
    inside = [f"{scheduler.address}:{SCHEDULER_PORT}"]
    inside += [f"{worker.address}:{port}" for worker in own["worker"] for port in worker.ports()]
    metrics = f"{trainer.address}:{METRICS_PORT}"

    network = local.network
    kind = socket.AF_INET6 if ":" in network.host else socket.AF_INET
    with socket.create_server((network.host, 0), family=kind) as server, ThreadPoolExecutor() as threads:
        outside = [*others, f"{bracketed(network.host)}:{server.getsockname()[1]}"]
        api = f"{bracketed(network.host)}:{API_PORT}"
        every = [*inside, metrics, *outside, api]
        asked = [threads.submit(pod.reaches, every) for pod in (*pods.values(), trainer, own["worker"][0])]
        stranger, neighbour, of_the_trainer, of_a_worker = (each.result() for each in asked)

    assert len(inside) >= 5, "the scheduler, and of each worker at least its server and its listener"
    assert {*outside, api} == stranger == neighbour
    assert {*inside, metrics, api} == of_the_trainer == of_a_worker
    assert [metrics] == [each for each in (*inside, metrics) if from_here(each)]


def from_here(address: str) -> bool:
    """Whether this process can connect."""
    try:
        socket.create_connection(host_and_port(address), PATIENCE_SECONDS).close()
    except TimeoutError:
        return False
    return True
