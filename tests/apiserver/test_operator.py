"""The operator as a process against a real API server. Nodes and controllers are played by the tests."""

from __future__ import annotations

import copy
import importlib.util
import json
import multiprocessing
import runpy
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import names
from batchgrowth.progress import Progress
from batchgrowth_operator.api import Api, connect
from batchgrowth_operator.kinds import EVENTS, JOBS, KINDS, READ_ONLY, UNWATCHED, WATCHED, Kind
from batchgrowth_operator.observed import Ref
from batchgrowth_operator.scheduler import SETTLED_AFTER_SECONDS

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "operator_process.py"
JOB = Ref("BatchGrowthJob", "digits")
WORKERS = Ref("Deployment", "digits-workers")
TRAINER = Ref("Job", "digits-trainer")
CLUSTER = Ref("DaskCluster", "digits")
PLAN = Ref("ConfigMap", "digits-plan")
SERVICES = KINDS["Service"]
CHILDREN = [
    PLAN, Ref("ConfigMap", "digits-progress"), Ref("Secret", "digits-tls"), Ref("ServiceAccount", "digits-trainer"),
    Ref("Role", "digits-progress"), Ref("RoleBinding", "digits-progress"), Ref("NetworkPolicy", "digits"),
    CLUSTER, WORKERS, TRAINER,
]  # fmt: skip
PATIENCE_SECONDS = 30
NUMBERS = count()

processes = multiprocessing.get_context("forkserver")


@dataclass
class Field:
    """A namespace of its own, with what a test does there. `start` starts an operator."""

    api: Api
    kubeconfig: Path
    namespace: str
    operators: list[Any] = field(default_factory=list)

    def start(self, writes: int = 0, holder: str = "") -> Any:
        given = {
            "KUBECONFIG": str(self.kubeconfig),
            "NAMESPACE": self.namespace,
            "WRITES": writes,
            "HOLDER": holder,
        }
        process = processes.Process(target=runpy.run_path, args=(str(SCRIPT),), kwargs={"init_globals": given})
        process.start()
        self.operators.append(process)
        return process

    def stop(self) -> None:
        for process in self.operators:
            process.terminate()
            process.join(20)
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

    def apply(self, **spec: Any) -> None:
        job = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
        job["metadata"]["namespace"] = self.namespace
        job["spec"] |= spec
        self.api._send("post", KINDS[JOB.kind], KINDS[JOB.kind].path(self.namespace), body=job)

    def report(self, update: int, pace: float = 1.0) -> None:
        """What the trainer would say, written as it writes it."""
        progress = Progress(
            update=update, updates=460, epoch=update / 45, epochs=30, stage=0, batch_size=32, learning_rate=0.05,
            workers=1, seconds_per_update=pace,
        )  # fmt: skip
        self.patch(Ref("ConfigMap", "digits-progress"), {"data": {names.PROGRESS_KEY: progress.to_json()}})

    def workers_come(self) -> None:
        wanted = self.get(WORKERS)["spec"]["replicas"]
        self.patch(WORKERS, {"status": {"replicas": wanted, "readyReplicas": wanted}}, "status")

    def make_scheduler(self) -> None:
        """What the Dask operator does for a new DaskCluster, as far as it is not done."""
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
        return all(self.get(ref) is not None for ref in CHILDREN)

    def everything(self) -> list[Any]:
        return [self.get(ref) for ref in [JOB, *CHILDREN]]

    def rest(self) -> list[Any]:
        """Everything, when nothing has been written for a second."""
        before, since = self.everything(), time.monotonic()
        while time.monotonic() - since < 1:
            time.sleep(0.1)
            now = self.everything()
            if now != before:
                before, since = now, time.monotonic()
        return before


def until(holds: Callable[[], Any], wanted: Any = True, seconds: float = PATIENCE_SECONDS) -> None:
    """Returns when it holds; fails with what was there instead after so many seconds."""
    end = time.monotonic() + seconds
    while (found := holds()) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    assert wanted == found


@pytest.fixture(scope="module", autouse=True)
def preloaded() -> None:
    """Operators are forked from a process that has imported everything: each starts in a moment."""
    processes.set_forkserver_preload(["batchgrowth_operator.__main__", "kopf", "cryptography.x509"])


@pytest.fixture(scope="module")
def dask_crds(apiserver: Any) -> list[Path]:
    """The Dask operator's CRDs, from its wheel."""
    found = importlib.util.find_spec("dask_kubernetes")
    assert found is not None
    [package] = found.submodule_search_locations or []
    crds = sorted(Path(package).glob("operator/deployment/helm/*/crds/*.yaml"))
    for crd in crds:
        applied = apiserver.kubectl("apply", "--server-side", "-f", crd)
        assert 0 == applied.returncode, applied.stderr
    until(lambda: apiserver.kubectl("get", "daskclusters").returncode, 0)
    return crds


@pytest.fixture
def make_field(apiserver: Any, dask_crds: list[Path]) -> Iterator[Callable[[], Field]]:
    """A function: a new namespace."""
    made: list[Field] = []
    api = connect(apiserver.kubeconfig, lambda *_: None)

    def make() -> Field:
        namespace = f"operator-{next(NUMBERS)}"
        created = apiserver.kubectl("create", "namespace", namespace)
        assert 0 == created.returncode, created.stderr
        made.append(Field(api, apiserver.kubeconfig, namespace))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def ground(make_field: Callable[[], Field]) -> Field:
    """A new namespace, and an operator at work in it."""
    made = make_field()
    made.start()
    return made


def test_the_children_of_the_example(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)

    uid = ground.get(JOB)["metadata"]["uid"]
    for ref in CHILDREN:
        metadata = ground.get(ref)["metadata"]
        assert [uid] == [owner["uid"] for owner in metadata["ownerReferences"]]
        assert "digits" == metadata["labels"][names.JOB_LABEL]
    assert ("True", "PlanMade") == ground.condition("Accepted")
    assert "finalizers" not in ground.get(JOB)["metadata"]
    writers = {(entry["manager"], entry.get("subresource")) for entry in ground.get(JOB)["metadata"]["managedFields"]}
    assert {("batchgrowth-operator", "status")} == {writer for writer in writers if writer[0] == names.FIELD_MANAGER}


def test_nothing_is_written_when_nothing_changes(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)
    before = ground.rest()

    time.sleep(3)

    assert before == ground.everything()


def test_a_milestone_brings_workers(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)
    ground.workers_come()
    ground.report(10)
    until(lambda: ground.condition("Training"), ("True", "UpdatesCommitted"))
    assert 1 == ground.replicas()

    ground.report(398)
    until(ground.replicas, 2)
    until(lambda: ground.condition("Resizing"), ("True", "ScalingUp"))
    ground.workers_come()
    until(lambda: ground.condition("Resizing"), ("False", "AtTarget"))

    assert 2 == ground.get(JOB)["status"]["workers"]["ready"]


def test_a_job_without_a_plan_makes_nothing(ground: Field) -> None:
    rate = {"initial": "0.05", "rule": "DecayPastMaximum", "warmup": {"initial": "0.01", "updates": 100_000}}
    ground.apply(learningRate=rate)

    until(lambda: ground.condition("Accepted"), ("False", "PlanImpossible"))

    ground.rest()
    assert [] == [ref for ref in CHILDREN if ground.get(ref) is not None]


def test_suspend_resume_and_the_end(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)
    ground.patch(JOB, {"spec": {"suspend": True}})
    until(
        lambda: (ground.get(WORKERS), ground.get(CLUSTER), ground.get(TRAINER)["spec"]["suspend"]), (None, None, True)
    )
    until(lambda: ground.condition("Suspended"), ("True", "BySpec"))

    ground.patch(JOB, {"spec": {"suspend": False}})
    until(lambda: ground.is_complete() and not ground.get(TRAINER)["spec"]["suspend"])

    ground.report(460)
    ground.trainer_ends()
    until(lambda: ground.condition("Succeeded"), ("True", "Finished"))
    until(lambda: (ground.get(WORKERS), ground.get(CLUSTER)), (None, None))
    assert ground.get(TRAINER) is not None


def test_bounds_change_midway(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)
    ground.report(440)
    until(ground.replicas, 4)

    ground.patch(JOB, {"spec": {"workers": {"maximum": 3}}})
    until(ground.replicas, 3)


@pytest.mark.parametrize("ref", CHILDREN, ids="/".join)
def test_a_child_that_is_deleted_comes_back(ground: Field, ref: Ref) -> None:
    """A Secret does so within half a minute: nobody watches Secrets."""
    ground.apply()
    until(ground.is_complete)
    before = ground.rest()[1 + CHILDREN.index(ref)]["metadata"]["uid"]
    if ref.kind == "Job":
        ground.patch(ref, {"metadata": {"finalizers": None}})

    ground.delete(ref)

    until(lambda: (ground.get(ref) or {"metadata": {"uid": before}})["metadata"]["uid"] != before, seconds=60)


def test_a_child_that_is_changed_or_loses_its_label_is_repaired(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)
    ground.patch(WORKERS, {"spec": {"replicas": 9}, "metadata": {"labels": {names.JOB_LABEL: None}}})
    ground.patch(PLAN, {"data": {names.PLAN_KEY: "{}"}})

    until(ground.replicas, 1)
    until(lambda: ground.get(WORKERS)["metadata"]["labels"].get(names.JOB_LABEL), "digits")
    until(lambda: json.loads(ground.get(PLAN)["data"][names.PLAN_KEY]) != {})


def test_somebody_else_s_object_is_not_taken(ground: Field) -> None:
    theirs = {"metadata": {"name": PLAN.name, "namespace": ground.namespace}, "data": {"theirs": "1"}}
    ground.api._send("post", KINDS["ConfigMap"], KINDS["ConfigMap"].path(ground.namespace), body=theirs)
    ground.apply()
    until(lambda: ground.condition("ClusterReady"), ("False", "NameTaken"))
    assert {"theirs": "1"} == ground.get(PLAN)["data"]

    ground.delete(PLAN)
    until(ground.is_complete)
    until(lambda: ground.condition("ClusterReady"), ("False", "WaitingForScheduler"))


def test_a_template_that_the_api_server_refuses_is_told(ground: Field) -> None:
    """Server-side apply is strict: a field that does not exist is an error and not dropped."""
    ground.apply(workers={"template": {"spec": {"nodeSelektor": {"a": "b"}}}})

    until(lambda: ground.condition("ClusterReady"), ("False", "ChildRefused"))

    [ready] = [c for c in ground.get(JOB)["status"]["conditions"] if c["type"] == "ClusterReady"]
    assert "nodeSelektor" in ready["message"]


def test_without_the_dask_operator_s_crds(
    make_field: Callable[[], Field], apiserver: Any, dask_crds: list[Path]
) -> None:
    """An operator that starts before the Dask operator is installed says what is missing, and goes on once it is."""
    [crd] = [path for path in dask_crds if "daskcluster" in path.name]
    assert 0 == apiserver.kubectl("delete", "-f", crd).returncode
    ground = make_field()
    try:
        ground.start()
        ground.apply()
        until(lambda: ground.condition("ClusterReady"), ("False", "DaskOperatorMissing"))
        assert None is ground.get(TRAINER)
    finally:
        assert 0 == apiserver.kubectl("apply", "--server-side", "-f", crd).returncode

    until(ground.is_complete)
    until(lambda: ground.condition("ClusterReady"), ("False", "WaitingForScheduler"))


def test_the_dask_operator_s_crd_goes_while_it_is_watched(ground: Field, apiserver: Any, dask_crds: list[Path]) -> None:
    """And comes back: the watch of it has ended for good by then, and the operator has not."""
    ground.apply()
    until(ground.is_complete)
    [crd] = [path for path in dask_crds if "daskcluster" in path.name]
    assert 0 == apiserver.kubectl("delete", "-f", crd).returncode
    try:
        until(lambda: ground.condition("ClusterReady"), ("False", "DaskOperatorMissing"))
    finally:
        assert 0 == apiserver.kubectl("apply", "--server-side", "-f", crd).returncode

    until(ground.is_complete, seconds=60)
    until(lambda: ground.condition("ClusterReady"), ("False", "WaitingForScheduler"))
    ground.delete(CLUSTER)
    until(ground.is_complete)
    assert ground.operators[0].is_alive()


def test_a_part_of_the_scheduler_that_is_deleted_is_asked_for(ground: Field) -> None:
    """The Dask operator makes what is not there of a DaskCluster in phase Created, and nothing ever again."""
    ground.apply()
    until(ground.is_complete)
    ground.make_scheduler()
    until(lambda: ground.condition("ClusterReady"), ("False", "WaitingForWorkers"))
    time.sleep(SETTLED_AFTER_SECONDS)
    assert "Running" == ground.get(CLUSTER)["status"]["phase"]

    ground.api._send("delete", SERVICES, SERVICES.path(ground.namespace, "digits-scheduler"))

    until(lambda: ground.get(CLUSTER)["status"]["phase"], "Created")
    ground.make_scheduler()
    ground.rest()
    assert "Running" == ground.get(CLUSTER)["status"]["phase"]


def test_two_operators_make_one_outcome(ground: Field) -> None:
    ground.start()
    ground.apply()
    until(ground.is_complete)
    ground.report(440)
    until(ground.replicas, 4)
    before = ground.rest()

    time.sleep(3)

    assert before == ground.everything()


def test_one_of_two_works_and_the_other_takes_over(make_field: Callable[[], Field]) -> None:
    ground = make_field()

    def holder() -> str:
        lease = ground.api.get_lease(ground.namespace, "operators")
        return str(lease["spec"]["holderIdentity"]) if lease else ""

    first = ground.start(holder="first")
    until(holder, "first")
    ground.start(holder="second")
    ground.apply()
    until(ground.is_complete)

    first.kill()
    ground.report(440)

    until(ground.replicas, 4)
    assert "second" == holder()


def test_its_rights_are_enough(make_field: Callable[[], Field], apiserver: Any) -> None:
    """Those for the calls in its table, and a look at which CRDs there are: a whole life needs no others."""
    read, written = ["list", "watch"], ["list", "watch", "get", "create", "patch"]
    rules = [
        _rule(kind, read if name in {JOB.kind, *READ_ONLY} else written) for name, kind in (JOBS | WATCHED).items()
    ]
    rules += [_rule(kind, ["get", "create", "patch"]) for kind in UNWATCHED.values()]
    rules += [_rule(KINDS[kind], ["delete"]) for kind in ("DaskCluster", "Deployment", "Job", JOB.kind)]
    rules += [_rule(KINDS[JOB.kind], ["patch"], "/status"), _rule(EVENTS, ["create"])]
    rules.append({"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": read})
    name = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "operator-of-tests"}}
    bound = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "operator-of-tests"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "operator"}],
    }
    for body in ({"kind": "ClusterRole", "rules": rules}, {"kind": "ClusterRoleBinding", **bound}):
        applied = apiserver.kubectl("apply", "-f", "-", given=json.dumps(name | body))
        assert 0 == applied.returncode, applied.stderr
    ground = make_field()
    ground.kubeconfig = apiserver.client("operator", "operator")
    ground.start()

    live(ground)


def _rule(kind: Kind, verbs: list[str], subresource: str = "") -> dict[str, list[str]]:
    return {"apiGroups": [kind.group], "resources": [kind.plural + subresource], "verbs": verbs}


def test_the_api_server_goes_and_comes_back(ground: Field, apiserver: Any) -> None:
    ground.apply()
    until(ground.is_complete)
    apiserver.stop_serving()
    time.sleep(3)
    apiserver.serve_again()

    ground.report(440)

    until(ground.replicas, 4)


def live(ground: Field) -> None:
    """A life: begin, train, cross a milestone, end. Each step waits for what it needs, however the operator fares."""
    ground.apply()
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


def comparable(objects: list[Any]) -> tuple[list[str], Any]:
    """Without what differs from run to run: times, identities, keys."""
    kept = copy.deepcopy([o for o in objects if o is not None])
    for each in kept:
        place = each["metadata"].pop("namespace")
        each["metadata"] = {k: each["metadata"][k] for k in ("name", "labels", "annotations") if k in each["metadata"]}
        if each["kind"] == "Secret":
            each["data"] = sorted(each["data"])
        each.update(json.loads(json.dumps(each).replace(place, "NAMESPACE")))
    text = json.dumps([{k: v for k, v in each.items() if k != "metadata"} for each in kept], default=str)
    return [each["metadata"]["name"] for each in kept], _without_times(json.loads(text))


def _without_times(value: Any) -> Any:
    passing = ("Time", "Seconds", "uid")
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if not k.endswith(passing)}
    return [_without_times(v) for v in value] if isinstance(value, list) else value


def test_an_operator_that_is_killed_after_any_write(make_field: Callable[[], Field]) -> None:
    """One life for each write of the undisturbed one: killed right after it, another operator takes over."""
    whole = make_field()
    whole.start()
    live(whole)
    expected = comparable(whole.rest())
    whole.stop()
    for writes in count(1):
        ground = make_field()
        mortal = ground.start(writes)
        _take_over(ground, mortal)
        live(ground)
        assert expected == comparable(ground.rest()), f"killed after write {writes}"
        died = mortal.exitcode is not None
        ground.stop()
        if not died:
            assert writes > 15
            return


def _take_over(ground: Field, mortal: Any) -> None:
    def watch() -> None:
        mortal.join()
        if mortal.exitcode == -9:
            ground.start()

    threading.Thread(target=watch, daemon=True).start()
