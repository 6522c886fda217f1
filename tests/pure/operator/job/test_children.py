"""The children of a job: the example's in full, and what each guarantees."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import names
from batchgrowth_operator.seen.observed import Ref
from batchgrowth_operator.settings import Defaults, Network

GOLDEN = Path(__file__).parent / "golden" / "digits-children.yaml"
MakeWorld = Any


def children(world: Any) -> list[dict[str, Any]]:
    return list(world.decide().apply)


def pod_specs(world: Any) -> dict[str, dict[str, Any]]:
    """The pod specs of a settled world by role."""
    return {
        "scheduler": world.cluster["spec"]["scheduler"]["spec"],
        "trainer": world.trainer["spec"]["template"]["spec"],
        "worker": world.deployment["spec"]["template"]["spec"],
    }


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


@pytest.mark.fault("E01")
def test_the_example_in_full(make_world: MakeWorld) -> None:
    """The diff of the golden file shows what an upgrade of the operator changes in users' clusters."""
    without_aliases = json.loads(json.dumps(children(make_world())))

    assert GOLDEN.read_text() == yaml.safe_dump_all(without_aliases, sort_keys=False, width=120)


@pytest.mark.fault("A30", "B03", "B25")
def test_every_child_is_owned_and_labelled(make_world: MakeWorld) -> None:
    for manifest in children(make_world()):
        metadata = manifest["metadata"]
        assert {"batchgrowth", "digits"} <= set(metadata["labels"].values())
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == ["0000-1111"]
        assert "finalizers" not in metadata


@pytest.mark.parametrize("role", ["scheduler", "trainer", "worker"])
def test_pods_keep_to_the_restricted_profile(make_world: MakeWorld, role: str) -> None:
    world = make_world()
    world.settle()

    spec = pod_specs(world)[role]
    [container] = spec["containers"]

    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {"/tmp", "/etc/batchgrowth"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.fault("C21", "E01")
@pytest.mark.parametrize("role", ["scheduler", "trainer", "worker"])
def test_pods_speak_nothing_but_tls(make_world: MakeWorld, role: str) -> None:
    world = make_world()
    world.settle()

    told = environment(pod_specs(world)[role]["containers"][0])

    assert told["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "true"
    assert told["DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY"] == "/etc/batchgrowth/tls/tls.key"
    assert told["DASK_DISTRIBUTED__COMM__TLS__CA_FILE"] == "/etc/batchgrowth/tls/ca.crt"


@pytest.mark.parametrize("role", ["scheduler", "trainer", "worker"])
def test_pods_ask_for_a_share_of_a_busy_node(make_world: MakeWorld, role: str) -> None:
    """The kernel schedules a pod without a CPU request last: its worker would load torch for half a minute."""
    world = make_world()
    world.settle()
    [container] = pod_specs(world)[role]["containers"]
    assert container["resources"]["requests"]["cpu"] == "100m"


@pytest.mark.fault("E02")
def test_only_the_trainer_may_call_the_api_server(make_world: MakeWorld) -> None:
    world = make_world()
    world.settle()

    assert {role: spec["automountServiceAccountToken"] for role, spec in pod_specs(world).items()} == {
        "scheduler": False,
        "trainer": True,
        "worker": False,
    }


def test_the_authority_s_key_is_mounted_nowhere(make_world: MakeWorld) -> None:
    world = make_world()
    world.settle()

    for spec in pod_specs(world).values():
        secrets = [
            s["secret"] for v in spec["volumes"] for s in v.get("projected", {}).get("sources", []) if "secret" in s
        ]
        assert [[item["key"] for item in s["items"]] for s in secrets] == [["ca.crt", "tls.crt", "tls.key"]]
        assert names.of("digits").authority not in json.dumps(spec)


@pytest.mark.fault("A12")
def test_no_two_jobs_share_the_name_of_an_object(make_world: MakeWorld) -> None:
    """Whatever suffixes their names have, so that no job takes the children of another for its own."""
    parts = ("", "-plan", "-progress", "-tls", "-authority", "-trainer", "-workers", "-scheduler", "-default")
    taken: dict[Ref, str] = {}
    for name in {f"digits{one}{other}" for one in parts for other in parts}:
        world = make_world()
        world.job["metadata"]["name"] = name
        scheduler = [Ref(kind, names.of(name).scheduler) for kind in ("Deployment", "Service")]  # by the Dask operator
        for ref in {Ref(m["kind"], m["metadata"]["name"]) for m in children(world)} | {*scheduler}:
            assert taken.setdefault(ref, name) == name, ref


@pytest.mark.fault("E05")
def test_nothing_of_a_job_lies_or_looks_outside_its_namespace(make_world: MakeWorld) -> None:
    """Claims, Secrets, ConfigMaps and accounts are referred to by a name alone."""
    world = make_world(
        imagePullSecrets=[{"name": "pull"}], serviceAccountName="reader", checkpoint={"volume": {"claimName": "ckpt"}}
    )
    world.job["metadata"]["namespace"] = "team-a"
    made = children(world)

    assert {manifest["metadata"]["namespace"] for manifest in made} == {"team-a"}
    assert set(re.findall(r'"namespace": "([^"]*)"', json.dumps(made))) == {"team-a"}
    assert not re.search('"namespaceSelector"|"ClusterRole', json.dumps(made))


def test_the_spec_s_settings_of_pods(make_world: MakeWorld) -> None:
    world = make_world(
        image="example/own:1",
        imagePullPolicy="Always",
        imagePullSecrets=[{"name": "pull"}],
        serviceAccountName="reader",
        checkpoint={"volume": {"claimName": "ckpt"}},
        restarts={"limit": 7},
    )
    world.settle()

    pods = pod_specs(world)

    for spec in pods.values():
        assert spec["imagePullSecrets"] == [{"name": "pull"}]
        assert tuple(spec["containers"][0][k] for k in ("image", "imagePullPolicy")) == ("example/own:1", "Always")
    assert pods["worker"]["serviceAccountName"] == "reader"
    claims = [
        v["persistentVolumeClaim"]["claimName"] for v in pods["trainer"]["volumes"] if "persistentVolumeClaim" in v
    ]
    assert (claims, world.trainer["spec"]["backoffLimit"]) == (["ckpt"], 7)


def test_an_object_store_and_its_credentials_are_the_trainer_s_alone(make_world: MakeWorld) -> None:
    """Workers run more of the user's code, and need neither."""
    world = make_world(checkpoint={"uri": "s3://runs/digits", "secretName": "store"})
    world.settle()

    pods = pod_specs(world)

    [trainer] = pods["trainer"]["containers"]
    assert environment(trainer)["BATCHGROWTH_CHECKPOINT_URI"] == "s3://runs/digits"
    assert trainer["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert [v for v in pods["trainer"]["volumes"] if v["name"] == "checkpoints"] == [
        {"name": "checkpoints", "emptyDir": {}}
    ]
    others = json.dumps([pods["worker"], pods["scheduler"]])
    assert "s3://" not in others
    assert "envFrom" not in others


@pytest.mark.fault("O13")
@pytest.mark.parametrize(("own", "default", "file"), [
    ("company", "", "store-ca/company.crt"), ("", "trust", "default-ca/trust.crt"),
    ("company", "trust", "store-ca/company.crt"),
])  # fmt: skip
def test_a_private_ca_is_a_file_of_the_trainer(make_world: MakeWorld, own: str, default: str, file: str) -> None:
    kept = {"uri": "s3://runs/digits"} | ({"caConfigMap": own} if own else {})
    world = make_world(checkpoint=kept)
    world.defaults = replace(world.defaults, ca_config_map=default)
    world.settle()

    pods = pod_specs(world)
    [trainer] = pods["trainer"]["containers"]
    assert environment(trainer)["BATCHGROWTH_CHECKPOINT_CA"] == f"/etc/batchgrowth/{file}"
    [files] = [v for v in pods["trainer"]["volumes"] if v["name"] == "batchgrowth"]
    item = {"key": "ca.crt", "path": file}
    assert {"configMap": {"name": own or default, "items": [item]}} in files["projected"]["sources"]
    assert (own or default) not in json.dumps([pods["worker"], pods["scheduler"]])


def test_a_default_ca_is_for_stores_alone(make_world: MakeWorld) -> None:
    world = make_world(checkpoint={"volume": {"claimName": "ckpt"}})
    world.defaults = replace(world.defaults, ca_config_map="trust")
    world.settle()
    assert "trust" not in json.dumps(pod_specs(world)["trainer"])


def test_without_a_secret_the_service_account_is_what_the_store_knows(make_world: MakeWorld) -> None:
    world = make_world(checkpoint={"uri": "gs://runs/digits"})
    world.settle()

    pod = pod_specs(world)["trainer"]

    assert "envFrom" not in pod["containers"][0]
    assert pod["serviceAccountName"] == "digits-trainer"


def test_another_restart_limit_changes_the_job_in_place(training_world: MakeWorld) -> None:
    world = training_world()
    world.edit(restarts={"limit": 9}).settle()

    assert world.trainer["spec"]["backoffLimit"] == 9


def test_a_job_keeps_the_template_that_the_api_server_filled_in(training_world: MakeWorld) -> None:
    """A Job's template is immutable, so the defaulted template is applied as it is."""
    world = training_world()
    world.trainer["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    world.edit(restarts={"limit": 9})

    [job] = [m for m in world.decide().apply if m["kind"] == "Job"]

    assert job["spec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirst"


def test_threads_reach_the_workers(make_world: MakeWorld) -> None:
    world = make_world(workers={"threads": 3})
    world.settle()

    told = environment(pod_specs(world)["worker"]["containers"][0])

    assert (
        told["OMP_NUM_THREADS"],
        told["MKL_NUM_THREADS"],
        told["MALLOC_TRIM_THRESHOLD_"],
        told["MALLOC_ARENA_MAX"],
        told["MALLOC_MMAP_MAX_"],
    ) == ("3", "3", "1073741824", "1", "0")


@pytest.mark.parametrize("loaders", [0, 2])
def test_loaders_have_shared_memory(make_world: MakeWorld, loaders: int) -> None:
    """Container runtimes give a container 64 MiB of it, with which torch's tensors end in SIGBUS."""
    world = make_world(workers={"maximum": 4, "loaders": loaders})
    world.settle()
    pod = world.deployment["spec"]["template"]["spec"]
    [mount] = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] == "/dev/shm"] or [None]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert ({"medium": "Memory"} if loaders else None) == (mount and volumes[mount["name"]]["emptyDir"])


def test_the_template_is_merged_into_the_workers(make_world: MakeWorld) -> None:
    gpu = {
        "name": "worker",
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
    }
    template = {
        "metadata": {"labels": {"team": "red"}},
        "spec": {"nodeSelector": {"pool": "gpu"}, "tolerations": [{"operator": "Exists"}], "containers": [gpu]},
    }
    world = make_world(workers={"template": template})
    world.settle()

    pod = world.deployment["spec"]["template"]
    [worker] = pod["spec"]["containers"]

    assert {"team": "red", names.JOB_LABEL: "digits"}.items() <= pod["metadata"]["labels"].items()
    assert (pod["spec"]["nodeSelector"], pod["spec"]["tolerations"]) == ({"pool": "gpu"}, [{"operator": "Exists"}])
    resources = {"requests": {"cpu": "100m"}, "limits": {"nvidia.com/gpu": 1}}
    assert (resources, "WARN") == (worker["resources"], environment(worker)["NCCL_DEBUG"])
    assert worker["command"][0] == "dask"


@pytest.mark.parametrize("own", [None, {"requests": {"cpu": "2"}}])
def test_what_a_template_limits_is_requested_too(make_world: MakeWorld, own: dict[str, Any] | None) -> None:
    """As in any pod, unless the spec requests something: our own small request is only for a worker without limits."""
    limits = {"cpu": "8", "memory": "32Gi"}
    template = {"spec": {"containers": [{"name": "worker", "resources": {"limits": limits}}]}}
    world = make_world(workers={"template": template}, **({"resources": own} if own else {}))
    world.settle()

    [worker] = world.deployment["spec"]["template"]["spec"]["containers"]

    assert {"limits": limits, "requests": own["requests"] if own else {}} == worker["resources"]


def test_what_a_template_sets_to_null_is_kubernetes_own(make_world: MakeWorld) -> None:
    world = make_world(workers={"template": {"spec": {"containers": [{"name": "worker", "resources": None}]}}})
    world.settle()

    [worker] = world.deployment["spec"]["template"]["spec"]["containers"]

    assert "resources" not in worker


SILENCE_SECONDS = 300  # for as long Dask itself waits for a silent worker


@pytest.mark.fault("C24")
@pytest.mark.parametrize("role", ["scheduler", "trainer", "worker"])
def test_a_container_that_is_only_slow_outlives_its_probe(make_world: MakeWorld, role: str) -> None:
    """Whether it starts, or answers late, or not for a while; another container of the pod is not asked."""
    world = make_world()
    world.settle()
    [container] = pod_specs(world)[role]["containers"]

    probe = container["livenessProbe"]
    ports = {port["name"] for port in container["ports"]}

    assert probe["httpGet"]["port"] in ports
    assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) + probe["timeoutSeconds"] >= SILENCE_SECONDS - 10
    assert probe["initialDelaySeconds"] >= SILENCE_SECONDS
    assert "startupProbe" not in container, "the trainer's pod would not be ready, and look like that of a lost node"


@pytest.mark.fault("C24")
def test_a_template_may_set_the_workers_probe(make_world: MakeWorld) -> None:
    def probe_with(own: dict[str, Any]) -> dict[str, Any]:
        worker = {"name": "worker", "livenessProbe": own}
        world = make_world(workers={"template": {"spec": {"containers": [worker]}}})
        world.settle()
        found: dict[str, Any] = pod_specs(world)["worker"]["containers"][0]["livenessProbe"]
        return found

    patient, other = probe_with({"failureThreshold": 90}), probe_with({"tcpSocket": {"port": "health"}})

    assert (patient["failureThreshold"], patient["httpGet"]) == (90, {"path": "/health", "port": "health"})
    assert (other["tcpSocket"], other["periodSeconds"]) == ({"port": "health"}, 20)
    assert "httpGet" not in other, "the API server refuses a probe that does two things"


@pytest.mark.fault("E02")
def test_the_trainer_may_patch_its_progress_and_nothing_else(make_world: MakeWorld) -> None:
    world = make_world()
    world.settle()

    [rule] = world.child("Role", "digits-progress")["rules"]
    binding = world.children[Ref("RoleBinding", "digits-progress")]

    assert (rule["resourceNames"], rule["verbs"]) == (["digits-progress"], ["get", "patch"])
    assert [subject["name"] for subject in binding["subjects"]] == ["digits-trainer"]
    assert pod_specs(world)["trainer"]["serviceAccountName"] == "digits-trainer"


@pytest.mark.fault("A17")
def test_errors_that_would_recur_fail_the_trainer(make_world: MakeWorld) -> None:
    world = make_world()
    world.settle()

    rules = world.trainer["spec"]["podFailurePolicy"]["rules"]

    assert [(rule["action"], rule["onExitCodes"]["values"]) for rule in rules if "onExitCodes" in rule] == [
        ("FailJob", [2, 3, 4, 5]),
        ("Ignore", [75, 130]),
    ]


def policy(world: Any) -> dict[str, Any]:
    spec: dict[str, Any] = world.child("NetworkPolicy", "digits")["spec"]
    return spec


def test_a_workload_may_download_its_data_by_default(make_world: MakeWorld) -> None:
    """Connections from the job's pods are free, and the metrics may be read from anywhere."""
    world = make_world()
    world.settle()

    own = {"podSelector": {"matchLabels": {names.JOB_LABEL: "digits"}}}
    assert policy(world)["policyTypes"] == ["Ingress"]
    assert "egress" not in policy(world)
    assert [{"from": [own]}, {"ports": [{"port": 9090, "protocol": "TCP"}]}] == policy(world)["ingress"]


def test_metrics_are_read_from_where_the_installation_says(make_world: MakeWorld) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    world = make_world()
    world.defaults = Defaults(image="example/trainer:1", network=Network(metrics_from=(peer,)))
    world.settle()

    [_, metrics] = policy(world)["ingress"]
    assert {"from": [peer], "ports": [{"port": 9090, "protocol": "TCP"}]} == metrics


def test_restricted_connections(make_world: MakeWorld) -> None:
    """The job's own pods, DNS, and what the installation lists; a job that runs gets the new policy too."""
    storage = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443, "protocol": "TCP"}]}
    world = make_world()
    world.settle()
    world.defaults = Defaults(image="example/trainer:1", network=Network(egress=(storage,)))
    world.settle()

    own = {"podSelector": {"matchLabels": {names.JOB_LABEL: "digits"}}}
    dns = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    assert policy(world)["policyTypes"] == ["Ingress", "Egress"]
    assert [{"to": [own]}, dns, storage] == policy(world)["egress"]
