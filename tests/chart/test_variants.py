"""The effect of each value."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth.manifest.pod_limits import PodSecurity
from batchgrowth_operator.commands import job_pods, rules, scheduler_resources, storage_size
from typer import BadParameter, Typer
from typer.main import get_command

from charts.folders import CHART
from cluster.recipe import KUBERNETES

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]
Helm = Callable[..., subprocess.CompletedProcess[str]]


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
    """One replica, the whole cluster, and the Dask operator."""
    objects = render()

    ports, logs = ["--health-port=8080", "--metrics-port=9090"], ["--log-level=info", "--log-format=text"]
    image, pods = "--image=registry.example/batchgrowth/trainer:0.1.0", "--pod-security=restricted"
    assert [image, pods, *ports, *logs] == operator(objects)["args"]
    assert operator(objects)["image"] == "registry.example/batchgrowth/operator:0.1.0"
    assert {body["metadata"]["name"] for body in of_kind(objects, "Deployment")} == {
        "batchgrowth",
        "batchgrowth-dask-kubernetes-operator",
    }
    assert [body["spec"]["replicas"] for body in of_kind(objects, "Deployment") if "replicas" in body["spec"]] == [1]


@pytest.mark.fault("O14")
@pytest.mark.parametrize(("release", "name"), [("a.b", "a-b-batchgrowth"), ("1a", "batchgrowth-1a")])
def test_any_name_of_a_release_gives_a_valid_name(render: Render, release: str, name: str) -> None:
    """Of a Service too, which is a DNS label that begins with a letter."""
    objects = render(release=release)
    ours = [body for body in objects if "dask" not in body["metadata"]["name"] and body["kind"] == "Service"]
    assert [f"{name}-metrics"] == [body["metadata"]["name"] for body in ours]
    assert name in {body["metadata"]["name"] for body in of_kind(objects, "Deployment")}


@pytest.mark.fault("O08")
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_chart_may_have_this_one_as_a_dependency(helm: Helm, chart: Path, tmp_path: Path, enabled: str) -> None:
    """With Helm's usual condition for it, which is handed to the dependency as well."""
    needed = {"name": "batchgrowth", "version": "*", "condition": "batchgrowth.enabled"}
    about = {"apiVersion": "v2", "name": "umbrella", "version": "0.1.0", "dependencies": [needed]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(about))
    shutil.copytree(chart, tmp_path / "charts" / "batchgrowth")
    images = yaml.safe_load((CHART / "ci" / "images-values.yaml").read_text())
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"batchgrowth": images}))
    place = ("--kube-version", KUBERNETES, "--set", f"batchgrowth.enabled={enabled}")

    done = helm("template", "team", tmp_path, *place)

    assert 0 == done.returncode, done.stderr
    assert (enabled == "true") == ("team-batchgrowth" in done.stdout)


def test_the_operator_gets_the_namespaces(render: Render) -> None:
    """And the Dask operator can be left out."""
    objects = render(*values("namespaced"))

    assert {"--namespace=team-a", "--namespace=team-b"} <= set(operator(objects)["args"])
    assert len(of_kind(objects, "Deployment")) == 1


def test_several_replicas_share_a_lease(render: Render) -> None:
    """A single replica needs no Lease and has no right to one."""
    objects = render(*values("replicas"))

    assert "--lease=batchgrowth" in operator(objects)["args"]
    assert [b["metadata"]["name"] for b in of_kind(objects, "Role") if "lease" in b["metadata"]["name"]] == [
        "batchgrowth-lease"
    ]
    assert [b for b in of_kind(render(), "Role") if "lease" in b["metadata"]["name"]] == []


@pytest.mark.fault("O09")
def test_rights_in_one_namespace_alone(render: Render, helm: Helm, chart: Path) -> None:
    """Everything is in the release's namespace; what would not be is refused with the way out."""
    objects = render(*values("restricted"))
    assert {body["metadata"]["namespace"] for body in objects} == {"operators"}
    assert "--namespace=operators" in operator(objects)["args"]

    def refusal(*given: str) -> str:
        place = (*values("images"), "--namespace", "operators", "--kube-version", KUBERNETES)
        return helm("template", "batchgrowth", chart, *place, "--set", "rbac.namespaced=true", *given).stderr

    assert "watch.namespaces: with rbac.namespaced, the operator has rights in the release's own" in refusal(
        *values("restricted"), "--set", "watch.namespaces={elsewhere}"
    )
    asks = "dask-kubernetes-operator.rbac.cluster: the Dask operator asks for rights in the whole cluster"
    assert asks in refusal()
    own = ("--set", "dask-kubernetes-operator.rbac.cluster=false")
    assert asks in refusal(*own)
    assert "" == refusal(*own, "--set", "dask-kubernetes-operator.kopfArgs={--namespace=operators}")


@pytest.mark.fault("F01")
def test_a_second_release_leaves_the_cluster_s_things_alone(render: Render) -> None:
    """Only names in its own namespace equal the first release's."""
    wide = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    first = {(b["kind"], b["metadata"]["name"]) for b in render() if b["kind"] in wide}
    second = {
        (b["kind"], b["metadata"]["name"])
        for b in render(*values("second"), "--namespace", "elsewhere")
        if b["kind"] in wide
    }

    assert first & second == set()
    assert second == {("ClusterRole", "batchgrowth-elsewhere"), ("ClusterRoleBinding", "batchgrowth-elsewhere")}


@pytest.mark.fault("F01")
def test_monitors_only_when_asked(render: Render) -> None:
    """They need the Prometheus operator's kinds."""
    kinds = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    objects = [body for body in render(*values("monitored")) if body["kind"] in kinds]

    assert [body for body in render() if body["kind"] in kinds] == []
    assert kinds == {body["kind"] for body in objects}
    for body in objects:
        assert body["metadata"]["labels"]["release"] == "kube-prometheus-stack"
        if body["kind"] == "PrometheusRule":
            assert yaml.safe_load((CHART / "files" / "alerts.yaml").read_text()) == body["spec"]
            continue
        [endpoint] = body["spec"].get("endpoints") or body["spec"]["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint["interval"]) == ("metrics", "5s")


def test_monitors_look_where_the_operator_does(render: Render) -> None:
    """Trainers are in the jobs' namespaces; the operator's Service is in the release's."""
    everywhere = of_kind(render("--set", "monitors.enabled=true"), "PodMonitor")
    objects = render(*values("namespaced"), "--set", "monitors.enabled=true")
    [service] = of_kind(objects, "Service")

    assert [body["spec"]["namespaceSelector"] for body in everywhere] == [{"any": True}]
    assert [body["spec"]["namespaceSelector"] for body in of_kind(objects, "PodMonitor")] == [
        {"matchNames": ["team-a", "team-b"]}
    ]
    [monitor] = of_kind(objects, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


@pytest.mark.fault("F08")
def test_a_registry_of_one_s_own(render: Render) -> None:
    """Digests take precedence over tags, and every image comes from the registry."""
    objects = render(*values("registry"))
    images = [
        container["image"]
        for body in objects
        if body["kind"] in {"Deployment", "Pod"}
        for container in body["spec"].get("template", body)["spec"]["containers"]
    ]

    assert len(images) == 3
    assert f"registry.example/dask-kubernetes-operator:2026.3.0@sha256:{64 * '2'}" in images
    assert all(image.startswith("registry.example/") for image in images)
    assert operator(objects)["image"] == f"registry.example/batchgrowth/operator@sha256:{64 * '0'}"
    assert f"--image=registry.example/batchgrowth/trainer@sha256:{64 * '1'}" in operator(objects)["args"]
    assert sorted(body["metadata"]["name"] for body in of_kind(objects, "ServiceAccount")) == [
        "batchgrowth-dask-kubernetes-operator",
        "batchgrowth-test",
    ]


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
    """The release's name, with the chart's unless it contains that, or the one in the values."""
    objects = [b["metadata"]["name"] for b in render(*arguments, release=release) if b["kind"] == "Service"]

    assert [f"{name}-metrics"] == objects


def test_names_of_digits_are_texts(render: Render) -> None:
    """YAML reads them as numbers unless they are quoted, and the API server takes no number for a name."""
    names = {"1001", "1002", "1003", "1004", "1005"}
    given = "nameOverride=1003,serviceAccount.name=1004,priorityClassName=1005"
    more = ("--set", "monitors.enabled=true,alerts.enabled=true,replicaCount=2,podDisruptionBudget.enabled=true")
    more += ("--set", "dask-kubernetes-operator.enabled=false")  # the Dask operator's chart does not quote them
    objects = render("--namespace", "1001", "--set-string", given, *more, release="1002")

    def scalars(part: Any) -> list[Any]:
        if isinstance(part, dict | list):
            return [found for each in (part.values() if isinstance(part, dict) else part) for found in scalars(each)]
        return [part]

    found = [scalar for scalar in scalars(objects) if str(scalar) in names]
    assert names == set(found)
    restricted = render("--namespace", "1001", "--set-string", "watch.namespaces={1006}", *more)
    assert "1006" in [body["metadata"].get("namespace") for body in restricted]
    assert 1006 not in scalars(restricted)


def test_labels_and_annotations_replace_the_chart_s_own(render: Render, tmp_path: Path) -> None:
    own = {"app.kubernetes.io/part-of": "research"}
    given = {
        "podLabels": own,
        "podAnnotations": {"prometheus.io/scrape": "false"},
        "monitors": {"enabled": True, "labels": own},
        "alerts": {"enabled": True, "labels": own},
        "dashboard": {"labels": own},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(given))
    objects = render("-f", str(tmp_path / "values.yaml"))
    [deployment] = [each for each in of_kind(objects, "Deployment") if each["metadata"]["name"] == "batchgrowth"]
    pod = deployment["spec"]["template"]["metadata"]
    kinds = ("PodMonitor", "ServiceMonitor", "PrometheusRule", "ConfigMap")
    labelled = [pod, *(body["metadata"] for kind in kinds for body in of_kind(objects, kind))]

    assert [each["labels"]["app.kubernetes.io/part-of"] for each in labelled] == 5 * ["research"]
    assert pod["annotations"] == {"prometheus.io/scrape": "false", "prometheus.io/port": "9090"}


@pytest.mark.parametrize(
    "variant", [(), values("namespaced"), values("registry")], ids=["default", "namespaced", "own"]
)
def test_the_operator_knows_its_arguments(variant: tuple[str, ...], render: Render) -> None:
    """The operator parses the command line in the chart."""
    parsed = parse(operator(render(*variant))["args"])

    assert (parsed["health_port"], parsed["metrics_port"]) == (8080, 9090)
    assert (parsed["log_level"], parsed["log_format"]) == ("info", "text")
    assert parsed["image"]


def test_the_operator_knows_what_jobs_may_ask_for(render: Render) -> None:
    """The standard of their pods, the accounts that they may name, and what they get without asking."""
    few = parse(operator(render())["args"])
    more = ("--set", "jobs.podSecurity=baseline", "--set", "jobs.serviceAccounts={reader,writer}")
    more += ("--set", "jobs.checkpointSize=10Gi", "--set", "jobs.caConfigMap=company-ca")
    many = parse(operator(render(*more))["args"])

    assert (few["pod_security"], few["service_account"] or []) == ("restricted", [])
    assert (many["pod_security"], many["service_account"]) == ("baseline", ["reader", "writer"])
    assert tuple(storage_size(args["checkpoint_size"]) for args in (few, many)) == ("", "10Gi")
    assert (few["ca_config_map"], many["ca_config_map"]) == ("", "company-ca")
    with pytest.raises(BadParameter, match="--checkpoint-size: 10; give a whole number with a unit"):
        storage_size("10")


def test_the_operator_knows_the_defaults_of_all_pods(render: Render) -> None:
    given = ("--set", "jobs.pods.labels.cost-center=research", "--set", "jobs.pods.tolerations[0].operator=Exists")
    parsed, plain = parse(operator(render(*given))["args"]), parse(operator(render())["args"])

    assert job_pods(parsed["pods"], PodSecurity.restricted) == {
        "labels": {"cost-center": "research"},
        "tolerations": [{"operator": "Exists"}],
    }
    assert plain["pods"] == "{}"


def test_variables_in_the_defaults_of_all_pods_are_the_job_s(render: Render, tmp_path: Path) -> None:
    """The kubelet would replace $(HOME) in an argument by the operator's own."""
    pods = {"env": [{"name": "CACHE", "value": "$(HOME)/cache $$(HOME) $HOME"}]}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"jobs": {"pods": pods}}))
    container = operator(render("-f", str(tmp_path / "values.yaml")))

    def of_the_operator(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    variables = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    assert "HOME" in variables
    seen = [re.sub(r"\$\$|\$\((\w+)\)", of_the_operator, each) for each in container["args"]]

    assert job_pods(parse(seen)["pods"], PodSecurity.restricted) == pods


def test_the_operator_knows_who_may_read_metrics(render: Render) -> None:
    peers = "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=ops"
    parsed = parse(operator(render("--set", peers))["args"])
    free = parse(operator(render())["args"])

    assert rules("", parsed["metrics_from"]) == ({"namespaceSelector": {"matchLabels": {"team": "ops"}}},)
    assert (rules("", free["metrics_from"]), free["egress"]) == ((), None)


def test_the_operator_knows_where_pods_may_connect(render: Render) -> None:
    rule = "networkPolicy.egress[0].to[0].ipBlock.cidr=10.0.0.0/8"
    parsed = parse(operator(render("--set", rule, "--set", "networkPolicy.restrictEgress=true"))["args"])

    assert rules("", parsed["egress"]) == ({"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},)


@pytest.mark.parametrize("text", ["x", "{}", "[1]"])
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(BadParameter, match=r"^--egress: .*; give a JSON list of maps$"):
        rules("--egress", text)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("networkPolicy.restrictEgress=true", "networkPolicy.egress: empty; list at least the API server"),
        ("networkPolicy.egress[0].to[0].ipBlock.cidr=10.0.0.0/8", "networkPolicy.egress: has no effect; set "),
    ],
)
def test_half_a_network_policy_is_refused(setting: str, words: str, helm: Helm, chart: Path) -> None:
    """A trainer that cannot reach the API server reports nothing; rules that nothing applies protect nothing."""
    result = helm("template", "batchgrowth", chart, "--kube-version", KUBERNETES, *values("images"), "--set", setting)

    assert result.returncode != 0
    assert words in result.stderr


@pytest.mark.parametrize("key", ["image", "trainer.image"])
def test_images_have_to_be_named(key: str, helm: Helm, chart: Path) -> None:
    """No default repository: its owner could publish anything under our name."""
    result = helm(
        "template", "batchgrowth", chart, "--kube-version", KUBERNETES, *values("images"), "--set", f"{key}.repository="
    )

    assert result.returncode != 0
    assert f"): {key}.repository: empty; build the images, push them" in result.stderr


def test_the_operator_knows_the_lease(render: Render) -> None:
    """Replicas elect their leader by it."""
    assert parse(operator(render(*values("replicas")))["args"])["lease"] == "batchgrowth"


def parse(arguments: list[str]) -> dict[str, Any]:
    """The parsed options; an unknown one raises."""
    from batchgrowth_operator.commands import operator as command

    app = Typer()
    app.command()(command)
    return dict(get_command(app).make_context("operator", list(arguments)).params)


def test_every_file_of_ci_is_tried() -> None:
    """Every file is rendered by a test."""
    known = {"images", "namespaced", "restricted", "replicas", "second", "monitored", "registry", "ipv6"}

    assert known == {path.stem.removesuffix("-values") for path in Path(CHART / "ci").iterdir()}


@pytest.mark.fault("O28")
def test_the_operator_answers_probes_on_its_pod_s_address(render: Render) -> None:
    """Which may be of IPv6; kopf listens on one family of addresses. The Dask operator has to be told the other one."""
    where = {"name": "BATCHGROWTH_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    objects = render(*values("ipv6"))
    named = "batchgrowth-dask-kubernetes-operator"
    [dask] = [body for body in of_kind(objects, "Deployment") if body["metadata"]["name"] == named]
    arguments = dask["spec"]["template"]["spec"]["containers"][0]["args"]

    assert where in operator(objects)["env"]
    assert "--liveness=http://[::]:8080/healthz" == arguments[-1], "the last one counts"


@pytest.mark.fault("O05")
def test_a_platform_may_choose_the_users(render: Render) -> None:
    objects = render("--set", "fixedUser=false")
    [deployment] = [each for each in of_kind(objects, "Deployment") if each["metadata"]["name"] == "batchgrowth"]

    context = deployment["spec"]["template"]["spec"]["securityContext"]

    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert "--no-fixed-user" in operator(objects)["args"]


def test_the_operators_pod_has_what_the_values_add(render: Render, tmp_path: Path) -> None:
    given = {
        "podSecurityContext": {"supplementalGroups": [7]},
        "securityContext": {"privileged": False},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        "podDisruptionBudget": {"enabled": True, "maxUnavailable": 2},
        "jobs": {"schedulerResources": {"limits": {"memory": "8Gi"}}},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(given))
    objects = render("-f", str(tmp_path / "values.yaml"))
    container = operator(objects)
    [deployment] = [each for each in of_kind(objects, "Deployment") if each["metadata"]["name"] == "batchgrowth"]
    pod = deployment["spec"]["template"]["spec"]

    assert (pod["securityContext"]["supplementalGroups"], pod["securityContext"]["runAsUser"]) == ([7], 65532)
    assert container["securityContext"]["privileged"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["env"][-1] == given["extraEnv"][0]
    assert pod["volumes"][-1] == given["extraVolumes"][0]
    assert container["volumeMounts"][-1] == given["extraVolumeMounts"][0]
    [budget] = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 2
    assert (
        budget["spec"]["selector"]["matchLabels"].items()
        <= deployment["spec"]["template"]["metadata"]["labels"].items()
    )
    [resources] = [each for each in container["args"] if each.startswith("--scheduler-resources=")]
    assert scheduler_resources(resources.partition("=")[2]) == {"requests": {}, "limits": {"memory": "8Gi"}}


def test_keys_that_are_left_empty(render: Render, tmp_path: Path) -> None:
    """Helm takes `operatorClass:` for a wish to remove the key."""
    (tmp_path / "values.yaml").write_text("operatorClass:\npodSecurityContext:\nsecurityContext:\n")

    assert render("-f", str(tmp_path / "values.yaml")) == render()


def test_without_a_budget_none_is_installed(render: Render) -> None:
    assert of_kind(render(), "PodDisruptionBudget") == []
