"""What companies put in the way of pods, all of it at once and each alone, in one namespace of a real cluster."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import trustme
import yaml
from batchgrowth import names
from batchgrowth.manifest.pod_limits import RESTRICTED_CONTAINER
from object_store import BUCKET, S3, s3, server_of
from real_job import SMALL, Kubectl, Object, RealJob, digits, new_namespace, said, until

from cluster.local import LocalCluster
from cluster.network import BY_FAMILY, Network
from cluster.node import NODE
from cluster.ports import bracketed

pytestmark = [pytest.mark.alone, pytest.mark.long]

SOON_SECONDS = 90  # 30 on a quiet machine
COST = "example.com/cost-centre"
TAINT = {"key": "example.com/team", "value": "ml", "effect": "NoSchedule"}
SIDECAR = "never-ends"
EPOCHS = 200
SIGTERM = "import os; os.kill(1, 15)"
MakeJob = Callable[..., RealJob]

ANSWERS: dict[str, Object] = {
    "policy": {"pods": {"labels": {COST: "research"}}},
    "taint": {"pods": {"tolerations": [TAINT | {"operator": "Equal"}]}},
    "priority": {"pods": {"priorityClassName": "ours"}},
    "limits": {"resources": {"requests": {"cpu": "50m"}}},
    "proxy": {"env": [{"name": "NO_PROXY", "value": ",".join(each.host for each in BY_FAMILY.values())}]},
    "store": {"checkpoint": {"caConfigMap": "company-ca"}},
}
"""What a job says to each obstacle, as parts of its spec."""
SAYS = {
    "policy": f"the policy {{namespace}} refuses it: every pod has the label {COST}",
    "taint": "untolerated taint",
    "priority": "there is no PriorityClass theirs",
    "limits": "a LimitRange refuses it: minimum cpu usage per Container is 50m",
    "proxy": "the store does not answer",
    "store": "of a CA that the trainer does not trust",
}
"""A part of what a condition says of each obstacle to a job without its answer."""


def merged(one: Any, other: Any) -> Any:
    """Two manifests in one: objects are merged, and lists are joined."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {key: merged(one[key], value) if key in one else value for key, value in other.items()}
    if isinstance(one, list) and isinstance(other, list):
        return one + other
    return other


def hindered(name: str, withheld: str = "") -> Object:
    """The digits job for the namespace of all obstacles, with the answers to them but for that one."""
    spec: Object = {
        # Data comes by a proxy that does not exist; the store's host is to be excepted.
        "env": [{"name": key, "value": "http://127.0.0.1:9"} for key in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")],
        "checkpoint": {"uri": f"s3://{BUCKET}/{name}", "secretName": "store", "everySeconds": 2},
        "resources": SMALL,
    }
    for obstacle, answer in ANSWERS.items():
        if obstacle != withheld:
            spec = merged(spec, answer)
    if withheld == "priority":
        spec["pods"]["priorityClassName"] = "theirs"
    return digits(name, EPOCHS, **spec)


def injected(review: Object) -> Object:
    """The answer of a mutating webhook that adds a container to a pod, which has no end."""
    [first, *_] = review["request"]["object"]["spec"]["containers"]
    words = "trap 'exit 0' TERM; while true; do sleep 1; done"
    added = {
        "name": SIDECAR,
        "image": first["image"],
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", words],
        "securityContext": RESTRICTED_CONTAINER,
    }
    patch = json.dumps([{"op": "add", "path": "/spec/containers/-", "value": added}])
    response = {
        "uid": review["request"]["uid"],
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(patch.encode()).decode(),
    }
    return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}


class Webhook(BaseHTTPRequestHandler):
    """Injects the container into every pod that it is asked about."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(injected(review)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


@contextmanager
def webhook(certificate: ssl.SSLContext, host: str) -> Iterator[int]:
    """The port of the webhook on this machine's address for the node."""
    with server_of(host)((host, 0), Webhook) as server:
        server.socket = certificate.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def obstacles(kubectl: Kubectl, namespace: str, local: LocalCluster) -> Iterator[S3]:
    """All obstacles in the test's namespace; yields the store with the private CA."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(local.network.host).configure_cert(context)
    pem = authority.cert_pem.bytes()
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    with ExitStack() as ends:
        store = ends.enter_context(s3(context, local.network.host))
        port = ends.enter_context(webhook(context, local.network.host))
        made = [
            *_of_the_namespace(namespace, store, pem.decode(), local.network),
            _mutation(namespace, here, f"https://{bracketed(local.network.host)}:{port}/", pem),
            *_policy(namespace, here),
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "ours"}, "value": 10},
        ]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
        ends.callback(lambda: said(kubectl("delete", "--wait=false", "--ignore-not-found", "-f", "-", given=text)))
        said(kubectl("apply", "--filename", "-", given=text))
        taint = "{key}={value}:{effect}".format(**TAINT)
        ends.callback(lambda: said(kubectl("taint", "node", NODE, f"{taint}-")))
        said(kubectl("taint", "node", NODE, taint))
        yield store


def _of_the_namespace(namespace: str, store: S3, ca: str, network: Network) -> list[Object]:
    """A LimitRange, what the store needs, and leave for the job's pods to reach it."""
    limits = {"type": "Container", "min": {"cpu": "50m"}, "max": {"memory": "4Gi"}, "default": {"memory": "2Gi"}}
    limits["defaultRequest"] = {"cpu": "50m", "memory": "64Mi"}
    machine = {"ipBlock": {"cidr": network.host_range}}
    egress = {"to": [machine], "ports": [{"port": store.port, "protocol": "TCP"}]}
    pods = {"matchExpressions": [{"key": names.JOB_LABEL, "operator": "Exists"}]}
    found: list[Object] = [
        {"kind": "LimitRange", "metadata": {"name": "sizes"}, "spec": {"limits": [limits]}},
        {"kind": "Secret", "metadata": {"name": "store"}, "stringData": store.environment},
        {"kind": "ConfigMap", "metadata": {"name": "company-ca"}, "data": {"ca.crt": ca}},
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "store"},
            "spec": {"podSelector": pods, "policyTypes": ["Egress"], "egress": [egress]},
        },
    ]
    return [merged({"apiVersion": "v1", "metadata": {"namespace": namespace}}, one) for one in found]


def _mutation(name: str, here: Object, url: str, ca: bytes) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "sidecars.example.com",
                "clientConfig": {"url": url, "caBundle": base64.b64encode(ca).decode()},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "namespaceSelector": here,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


def _policy(name: str, here: Object) -> list[Object]:
    group = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    rule = {
        "expression": f"'{COST}' in object.metadata.?labels.orValue({{}})",
        "message": f"every pod has the label {COST}",
    }
    return [
        {
            **group,
            "kind": "ValidatingAdmissionPolicy",
            "spec": {"matchConstraints": {"resourceRules": [pods]}, "validations": [rule]},
        },
        {
            **group,
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here}},
        },
    ]


@pytest.mark.fault("O01", "O04", "O12", "O13", "O29")
@pytest.mark.timeout(1800)
def test_all_obstacles_at_once(
    obstacles: S3, kubectl: Kubectl, job: MakeJob, local_sha256: Callable[[str], str]
) -> None:
    """The weights are those of a local run, though meanwhile a worker and another job's namespace are deleted, and the
    trainer is interrupted, beside which the container runs on.
    """
    expected = local_sha256(yaml.safe_dump(digits("hindered", EPOCHS)))
    with new_namespace(kubectl) as other:
        others = json.dumps(merged(digits("other", 10_000), {"spec": ANSWERS["taint"]}))
        said(kubectl("--namespace", other, "apply", "--filename", "-", given=others))
        hindered_job = job(hindered("hindered"))
        hindered_job.reaches(1)
        [trainer] = hindered_job.pods("trainer")
        assert SIDECAR in {container["name"] for container in trainer["spec"]["containers"]}
        said(kubectl("delete", "namespace", other, "--wait=false"))
        hindered_job.delete_pod("worker")
        first = trainer["metadata"]["name"]
        hindered_job.in_namespace("exec", first, "--container", "trainer", "--", "python", "-c", SIGTERM)

        def successors() -> list[Object]:
            return [pod for pod in hindered_job.pods("trainer") if pod["metadata"]["name"] != first]

        until("another trainer", successors, 240, hindered_job.story)
        status = hindered_job.succeeds(900)

    assert expected == status["trainerStatus"]["weightsSha256"]
    assert status["restarts"] == 0
    assert any(name.startswith("hindered/checkpoints/") for name in obstacles.names)
    roles = ("trainer", "worker", "scheduler")
    until("no pods", lambda: not any(map(hindered_job.pods, roles)), 240, hindered_job.story)


@pytest.mark.fault("O04", "O12", "O13")
@pytest.mark.parametrize("withheld", ANSWERS)
def test_an_obstacle_without_its_answer(obstacles: S3, job: MakeJob, namespace: str, withheld: str) -> None:
    """A condition says what it is."""
    hindered_job = job(hindered(f"without-{withheld}", withheld))
    words = SAYS[withheld].format(namespace=namespace)

    def told() -> bool:
        return any(words in one["message"] for one in hindered_job.status.get("conditions", ()))

    until(words, told, SOON_SECONDS, hindered_job.story)
