"""Properties of every object of the chart, whatever the values."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.smoke

Objects = list[dict[str, Any]]
LABELS = {"name", "instance", "version", "part-of", "managed-by"}
CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def is_ours(body: dict[str, Any]) -> bool:
    """Whether the object is of this chart and not of the Dask operator's."""
    return "batchgrowth-dask-kubernetes-operator" not in body["metadata"]["name"]


def pods(objects: Objects) -> dict[str, dict[str, Any]]:
    """The specs of all pods."""
    found = {b["metadata"]["name"]: b["spec"] for b in objects if b["kind"] == "Pod"}
    return found | {b["metadata"]["name"]: b["spec"]["template"]["spec"] for b in objects if b["kind"] == "Deployment"}


def named(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    """The one object."""
    [found] = [body for body in objects if (body["kind"], body["metadata"]["name"]) == (kind, name)]
    return found


def test_every_pod_is_restricted(rendered: Objects) -> None:
    """The rules of the Pod Security profile `restricted`, and stricter ones of this project."""
    for name, spec in pods(rendered).items():
        pod = spec["securityContext"]
        assert (pod["runAsNonRoot"], pod["seccompProfile"]["type"]) == (True, "RuntimeDefault"), name
        assert {"hostNetwork", "hostPID", "hostIPC"} & {key for key, value in spec.items() if value} == set()
        assert {key for v in spec.get("volumes") or () for key in v if key != "name"} - VOLUMES == set()
        for container in spec["containers"]:
            own = container["securityContext"]
            assert (
                own["allowPrivilegeEscalation"],
                own["capabilities"]["drop"],
                own["readOnlyRootFilesystem"],
            ) == (False, ["ALL"], True)
            assert "add" not in own["capabilities"]
            assert not own.get("privileged")
            assert [port for port in container.get("ports", ()) if "hostPort" in port] == []


def test_our_pods_run_as_nobody(rendered: Objects) -> None:
    """A fixed user, no variables for every service, memory bounded."""
    ours = {name: spec for name, spec in pods(rendered).items() if "dask" not in name}

    assert set(ours) == {"batchgrowth", "batchgrowth-test"}
    for spec in ours.values():
        assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) == (65532, 65532)
        assert spec["enableServiceLinks"] is False
        assert "memory" in spec["containers"][0]["resources"]["limits"]


def test_every_object_is_labelled(rendered: Objects) -> None:
    """With the labels that Kubernetes recommends."""
    for body in filter(is_ours, rendered):
        missing = {f"app.kubernetes.io/{label}" for label in LABELS} - body["metadata"]["labels"].keys()
        assert missing == set(), body["metadata"]["name"]


def test_no_object_lies_outside_its_namespace(rendered: Objects) -> None:
    """Objects are in the release's namespace, apart from roles in the watched namespaces."""
    for body in filter(is_ours, rendered):
        namespace = body["metadata"].get("namespace")
        if body["kind"] in CLUSTER_WIDE:
            assert namespace is None
        elif body["kind"] in {"Role", "RoleBinding"} and namespace != "operators":
            assert namespace in {"team-a", "team-b", "team-c"}
        else:
            assert namespace == "operators", body["metadata"]["name"]


def test_every_name_is_there_once(rendered: Objects) -> None:
    """No object overwrites another."""
    keys = [(b["kind"], b["metadata"].get("namespace"), b["metadata"]["name"]) for b in rendered]

    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("namespace", ["test", "lease", "view", "edit", "admin"])
def test_no_namespace_s_name_makes_two_roles_one(namespace: str, render: Callable[..., Objects]) -> None:
    """Or `helm test` would delete the operator's role with its own."""
    objects = render("--namespace", namespace, "--set", f"watch.namespaces={{{namespace}}},replicaCount=2")
    test_every_name_is_there_once(objects)

    bindings = [body for body in objects if body["kind"] in {"RoleBinding", "ClusterRoleBinding"} and is_ours(body)]
    assert [body["roleRef"]["name"] for body in bindings] == [body["metadata"]["name"] for body in bindings]


def test_selectors_find_the_operator_alone(rendered: Objects) -> None:
    """Deployment and Service select the operator's pods only, not the test's or the Dask operator's."""
    deployment = named(rendered, "Deployment", "batchgrowth")
    pod = deployment["spec"]["template"]["metadata"]["labels"]
    others = [b["metadata"]["labels"] for b in rendered if b["kind"] == "Pod"]
    others += [
        b["spec"]["template"]["metadata"]["labels"] for b in rendered if b["kind"] == "Deployment" and not is_ours(b)
    ]
    service = named(rendered, "Service", "batchgrowth-metrics")

    for selector in (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]):
        assert selector.items() <= pod.items()
        assert [labels for labels in others if selector.items() <= labels.items()] == []


def test_the_service_s_port_is_the_container_s(rendered: Objects) -> None:
    """Prometheus scrapes the port that the operator opens."""
    [container] = named(rendered, "Deployment", "batchgrowth")["spec"]["template"]["spec"]["containers"]
    [port] = named(rendered, "Service", "batchgrowth-metrics")["spec"]["ports"]

    assert {p["name"]: p["containerPort"] for p in container["ports"]} == {"health": 8080, "metrics": 9090}
    assert (port["targetPort"], port["port"]) == ("metrics", 9090)
    assert {"--health-port=8080", "--metrics-port=9090"} <= set(container["args"])


@pytest.mark.fault("B05")
def test_one_operator_ends_before_the_next_begins(rendered: Objects) -> None:
    """Two operators must not run at the same time."""
    assert named(rendered, "Deployment", "batchgrowth")["spec"]["strategy"] == {"type": "Recreate"}


def test_no_text_is_left_over(rendered: Objects) -> None:
    """No template syntax reaches the API server; Grafana's legends and the texts of alerts use the same braces."""
    others = [body for body in rendered if not body["metadata"]["name"].endswith("-dashboard")]
    texts = [yaml.safe_dump(body) for body in others if body["kind"] != "PrometheusRule"]

    assert [text for text in texts if "{{" in text or "<no value>" in text] == []
