"""What each value changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.main import get_command

from charts.folders import CHART

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]


def values(name: str) -> tuple[str, str]:
    """The arguments for a file of ci/."""
    return "-f", str(CHART / "ci" / f"{name}-values.yaml")


def of_kind(objects: Objects, kind: str) -> Objects:
    """The objects of one kind."""
    return [body for body in objects if body["kind"] == kind]


def operator(objects: Objects) -> dict[str, Any]:
    """The container of the operator."""
    [found] = [body for body in of_kind(objects, "Deployment") if body["metadata"]["name"] == "batchgrowth"]
    container: dict[str, Any] = found["spec"]["template"]["spec"]["containers"][0]
    return container


def test_the_defaults(render: Render) -> None:
    """One replica, the whole cluster, the Dask operator beside it."""
    told = render()

    ports, logs = ["--health-port=8080", "--metrics-port=9090"], ["--log-level=info", "--log-format=text"]
    assert ["--image=batchgrowth/trainer:0.1.0", *ports, *logs] == operator(told)["args"]
    assert "batchgrowth/operator:0.1.0" == operator(told)["image"]
    assert {"batchgrowth", "batchgrowth-dask-kubernetes-operator"} == {
        body["metadata"]["name"] for body in of_kind(told, "Deployment")
    }
    assert [1] == [body["spec"]["replicas"] for body in of_kind(told, "Deployment") if "replicas" in body["spec"]]


def test_namespaces_are_told_to_the_operator(render: Render) -> None:
    """And the Dask operator stays away where somebody else brings it."""
    told = render(*values("namespaced"))

    assert {"--namespace=team-a", "--namespace=team-b"} <= set(operator(told)["args"])
    assert 1 == len(of_kind(told, "Deployment"))


def test_several_replicas_share_a_lease(render: Render) -> None:
    """One replica needs none, and has no right to any."""
    told = render(*values("replicas"))

    assert "--lease=batchgrowth" in operator(told)["args"]
    assert ["batchgrowth-lease"] == [
        b["metadata"]["name"] for b in of_kind(told, "Role") if "lease" in b["metadata"]["name"]
    ]
    assert [] == [b for b in of_kind(render(), "Role") if "lease" in b["metadata"]["name"]]


def test_a_second_release_leaves_the_cluster_s_things_alone(render: Render) -> None:
    """It shares no name with the first but those in its own namespace."""
    wide = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    first = {(b["kind"], b["metadata"]["name"]) for b in render() if b["kind"] in wide}
    second = {
        (b["kind"], b["metadata"]["name"])
        for b in render(*values("second"), "--namespace", "elsewhere")
        if b["kind"] in wide
    }

    assert set() == first & second
    assert {("ClusterRole", "batchgrowth-elsewhere"), ("ClusterRoleBinding", "batchgrowth-elsewhere")} == second


def test_monitors_only_when_asked(render: Render) -> None:
    """They need the Prometheus operator's kinds."""
    kinds = {"ServiceMonitor", "PodMonitor"}
    told = [body for body in render(*values("monitored")) if body["kind"] in kinds]

    assert [] == [body for body in render() if body["kind"] in kinds]
    assert kinds == {body["kind"] for body in told}
    for body in told:
        assert "kube-prometheus-stack" == body["metadata"]["labels"]["release"]
        [endpoint] = body["spec"].get("endpoints") or body["spec"]["podMetricsEndpoints"]
        assert ("metrics", "5s") == (endpoint["port"], endpoint["interval"])


def test_monitors_look_where_the_operator_does(render: Render) -> None:
    """Trainers are in the jobs' namespaces; the operator's Service is in the release's."""
    everywhere = of_kind(render("--set", "monitors.enabled=true"), "PodMonitor")
    told = render(*values("namespaced"), "--set", "monitors.enabled=true")
    [service] = of_kind(told, "Service")

    assert [{"any": True}] == [body["spec"]["namespaceSelector"] for body in everywhere]
    assert [{"matchNames": ["team-a", "team-b"]}] == [
        body["spec"]["namespaceSelector"] for body in of_kind(told, "PodMonitor")
    ]
    [monitor] = of_kind(told, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


def test_a_registry_of_one_s_own(render: Render) -> None:
    """Digests are taken before tags, and everything that has an image comes from there."""
    told = render(*values("registry"))
    images = [
        container["image"]
        for body in told
        if body["kind"] in {"Deployment", "Pod"}
        for container in body["spec"].get("template", body)["spec"]["containers"]
    ]

    assert 3 == len(images)
    assert all(image.startswith("registry.example/") for image in images)
    assert f"registry.example/batchgrowth/operator@sha256:{64 * '0'}" == operator(told)["image"]
    assert f"--image=registry.example/batchgrowth/trainer@sha256:{64 * '1'}" in operator(told)["args"]
    assert ["batchgrowth-dask-kubernetes-operator", "batchgrowth-test"] == sorted(
        body["metadata"]["name"] for body in of_kind(told, "ServiceAccount")
    )


@pytest.mark.parametrize(
    ("release", "arguments", "name"),
    [
        ("batchgrowth", (), "batchgrowth"),
        ("my-batchgrowth", (), "my-batchgrowth"),
        ("mine", (), "mine-batchgrowth"),
        ("batchgrowth", ("--set", "nameOverride=bgj"), "batchgrowth-bgj"),
        ("batchgrowth", ("--set", "fullnameOverride=growing"), "growing"),
        (50 * "n", (), 40 * "n"),
    ],
)
def test_names(release: str, arguments: tuple[str, ...], name: str, render: Render) -> None:
    """The release's name, the chart's where the release's does not say it, or what the values say."""
    told = [b["metadata"]["name"] for b in render(*arguments, release=release) if b["kind"] == "Service"]

    assert [f"{name}-metrics"] == told


@pytest.mark.parametrize(
    "variant", [(), values("namespaced"), values("registry")], ids=["default", "namespaced", "own"]
)
def test_the_operator_knows_its_arguments(variant: tuple[str, ...], render: Render) -> None:
    """The command line that the chart writes is one that the operator takes."""
    parsed = parse(operator(render(*variant))["args"])

    assert (8080, 9090) == (parsed["health_port"], parsed["metrics_port"])
    assert ("info", "text") == (parsed["log_level"], parsed["log_format"])
    assert parsed["image"]


def test_the_operator_knows_the_lease(render: Render) -> None:
    """Several replicas find out by it which of them works."""
    assert "batchgrowth" == parse(operator(render(*values("replicas")))["args"])["lease"]


def parse(arguments: list[str]) -> dict[str, Any]:
    """What the operator understands; an option that it does not have raises."""
    from batchgrowth_operator.commands import operator as command

    app = Typer()
    app.command()(command)
    return dict(get_command(app).make_context("operator", list(arguments)).params)


def test_every_file_of_ci_is_tried() -> None:
    """A file that nobody renders would rot."""
    known = {"namespaced", "replicas", "second", "monitored", "registry"}

    assert known == {path.stem.removesuffix("-values") for path in Path(CHART / "ci").iterdir()}
