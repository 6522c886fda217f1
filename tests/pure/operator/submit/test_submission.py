"""What `batchgrowth submit` sends to the API server, in which order, and what it says of a refusal."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth.errors import BatchGrowthError, ClusterError, SpecError
from batchgrowth.manifest.reading import load_manifest, read_manifest
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_operator.api.client import Api, Refused, connect, connect_as_user
from batchgrowth_operator.commands import submit as command
from batchgrowth_operator.submit import Code, manifest_of, namespace_for, packed, submit

ROOT = Path(__file__).parents[4]
SPIRAL = ROOT / "examples" / "spiral"
GOOD = sorted((ROOT / "tests" / "corpus" / "good").iterdir())
CODE = packed("spiral", {"spiral.py": b"1"})


def spiral(**metadata: Any) -> Any:
    tree = yaml.safe_load((SPIRAL / "job.yaml").read_text())
    tree["metadata"] |= metadata
    return read_manifest(json.dumps(tree))


class FakeApi:
    """Remembers what was applied; refuses what `refuse` names."""

    def __init__(self, known: Any = None, refuse: dict[str, Exception] | None = None) -> None:
        self.known, self.refuse, self.applied = known, refuse or {}, list[tuple[str, bool, bool, Any]]()

    def get(self, ref: Any, namespace: str) -> Any:
        if "get" in self.refuse:
            raise self.refuse["get"]
        return self.known

    def apply(self, manifest: Any, *, manager: str, force: bool, dry_run: bool) -> Any:
        assert manager == "batchgrowth-submit"
        if manifest["kind"] in self.refuse:
            raise self.refuse[manifest["kind"]]
        owners = [owner["uid"] for owner in manifest["metadata"].get("ownerReferences", ())]
        assert manifest["metadata"]["namespace"] == "team"
        self.applied.append((manifest["kind"], dry_run, force, owners))
        return manifest | {"metadata": manifest["metadata"] | {"uid": "0000"}}


def submitted(api: Any, code: Code | None = CODE, **options: Any) -> list[tuple[str, bool, bool, Any]]:
    submit(api, "team", manifest_of(spiral(), code), code, **options)
    return list(api.applied)


def test_the_code_is_there_before_the_job_and_then_belongs_to_it() -> None:
    job, code = "BatchGrowthJob", "ConfigMap"
    assert [
        (job, True, False, []),
        (code, False, True, []),
        (job, False, False, []),
        (code, False, True, ["0000"]),
    ] == (submitted(FakeApi()))


def test_code_of_a_known_job_is_never_without_its_owner() -> None:
    known = {"metadata": {"name": "spiral", "uid": "1111"}}
    assert [owners for kind, *_, owners in submitted(FakeApi(known)) if kind == "ConfigMap"] == [["1111"], ["0000"]]


def test_a_job_without_code_is_applied_alone() -> None:
    assert (submitted(FakeApi(), None, force=True)) == [
        ("BatchGrowthJob", True, True, []),
        ("BatchGrowthJob", False, True, []),
    ]


@pytest.mark.parametrize(
    ("where", "why", "told"),
    [
        (
            "BatchGrowthJob",
            Refused(422, "the code of a job does not change"),
            "refuses BatchGrowthJob spiral in names.*",
        ),
        ("BatchGrowthJob", Refused(409, 'conflict with "kubectl"'), "--force-conflicts takes"),
        ("BatchGrowthJob", Refused(404, 'namespaces "team" not found'), '"team" not found$'),
        (
            "BatchGrowthJob",
            Refused(404, "404 page not found"),
            r"chart installed\? .* batchgrowthjobs\.batchgrowth\.dev",
        ),
        ("get", Refused(403, "bgj is forbidden"), "bgj is forbidden$"),
    ],
)
def test_a_refused_job_leaves_no_code_behind(where: str, why: Refused, told: str) -> None:
    api = FakeApi(refuse={where: why})
    with pytest.raises(BatchGrowthError, match=told):
        submitted(api)
    assert api.applied == []


def test_code_that_is_refused_is_named() -> None:
    with pytest.raises(BatchGrowthError, match=r"refuses ConfigMap spiral-code-.*exceeded quota"):
        submitted(FakeApi(refuse={"ConfigMap": Refused(403, "exceeded quota")}))


def test_no_answer_is_worth_a_retry() -> None:
    with pytest.raises(ClusterError, match=r"does not answer: get /apis"):
        submitted(FakeApi(refuse={"get": ConnectionError("get /apis: refused")}))


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_what_is_sent_is_what_was_written(path: Path) -> None:
    """Nothing that the operator or the API server fills in, and the same spec when it is read."""
    job = load_manifest(path)
    sent = manifest_of(job, None)
    again = BatchGrowthJob.model_validate(sent)
    assert (job.spec, job.metadata.name) == (again.spec, again.metadata.name)
    assert sent["metadata"].keys() <= {"name", "namespace", "labels", "annotations"}
    assert "kubectl.kubernetes.io/last-applied-configuration" not in sent["metadata"].get("annotations", {})


def test_the_source_is_the_code_unless_the_manifest_names_one() -> None:
    assert manifest_of(spiral(), CODE)["spec"]["workload"]["source"] == CODE.source
    job = load_manifest(ROOT / "tests" / "corpus" / "good" / "own-pods.yaml")
    with pytest.raises(SpecError, match=r"spec\.workload\.source: .digits-code-0123456789.; remove it, or leave out"):
        manifest_of(job, CODE)


def test_the_namespace() -> None:
    written = spiral(namespace="red")
    assert [
        namespace_for(written, None, "usual"), namespace_for(written, "red", "usual"),
        namespace_for(spiral(), "blue", "usual"), namespace_for(spiral(), None, "usual"),
    ] == ["red", "red", "blue", "usual"]  # fmt: skip
    with pytest.raises(SpecError, match=r"metadata\.namespace: .red.; remove it, or leave out --namespace blue"):
        namespace_for(written, "blue", "usual")


def test_a_dry_run_prints_what_kubectl_can_apply(capsys: pytest.CaptureFixture[str]) -> None:
    command(SPIRAL / "job.yaml", code=SPIRAL, namespace="team", dry_run=True)
    printed = capsys.readouterr().out
    config_map, job = yaml.safe_load_all(printed)

    assert {"spiral.py": (SPIRAL / "spiral.py").read_text()} == config_map["data"]
    assert config_map["metadata"]["name"] == job["spec"]["workload"]["source"]["configMap"]
    assert "\n    def right_side(" in printed, "code is printed as it was written"
    assert [each["metadata"]["namespace"] for each in (config_map, job)] == ["team", "team"]


def test_a_dry_run_keeps_decimals_in_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    command(ROOT / "tests" / "corpus" / "good" / "learning-rate-exponent.yaml", dry_run=True)
    assert read_manifest(capsys.readouterr().out).spec.learning_rate.initial == "5e-2"


@pytest.mark.fault("O10")
def test_a_generated_name_is_completed_anew_each_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Before it is applied, which needs a name; the code's ConfigMap is of that job."""
    tree = yaml.safe_load((SPIRAL / "job.yaml").read_text())
    tree["metadata"] = {"generateName": "sweep-"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(tree))
    names = []
    for _ in range(2):
        command(path, code=SPIRAL, dry_run=True)
        config_map, job = yaml.safe_load_all(capsys.readouterr().out)
        names.append(job["metadata"]["name"])
        assert {"name": names[-1]} == job["metadata"]
        assert names[-1] in config_map["metadata"]["labels"].values()
    assert all(re.fullmatch("sweep-[b-z2-9]{5}", name) for name in names)
    assert 2 == len(set(names))


def test_code_without_the_entrypoint_s_module_is_noted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "other.py").touch()
    command(SPIRAL / "job.yaml", code=tmp_path, dry_run=True)
    assert "has no module of spiral:workload; the image must have it" in capsys.readouterr().err


@pytest.mark.fault("N15")
def test_a_choice_that_can_never_act_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    command(SPIRAL / "job.yaml", set_=["epochs=1", "learningRate.schedule={type: Cosine}"], dry_run=True)
    noted = capsys.readouterr()
    assert "note: " in noted.err
    assert "learningRate.schedule" in noted.err
    assert yaml.safe_load(noted.out)["kind"] == "BatchGrowthJob"


def test_a_manifest_that_check_refuses_is_not_submitted() -> None:
    bad = ROOT / "tests" / "corpus" / "bad" / "epochs-zero.yaml"
    with pytest.raises(SpecError, match=r"spec.epochs"):
        command(bad, dry_run=True)


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: one
clusters: [{name: here, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: x}}]
contexts:
  - {name: one, context: {cluster: here, user: me, namespace: red}}
  - {name: two, context: {cluster: here, user: me}}
"""


def test_the_context_names_cluster_and_namespace(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    [(one, red), (_, default)] = connect_as_user(file, None), connect_as_user(file, "two")
    assert (isinstance(one, Api), one.access().server) == (True, "https://127.0.0.1:1")
    assert (red, default) == ("red", "default")
    with pytest.raises(BatchGrowthError, match=r"no cluster to submit to: .*three.*--context"):
        connect_as_user(file, "three")


def test_without_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(BatchGrowthError, match=r"no cluster to submit to: .*--kubeconfig or KUBECONFIG"):
        connect_as_user(empty, None)
    with pytest.raises(BatchGrowthError, match=r"no cluster to work in: .*; outside of a pod, give a file"):
        connect(None, lambda *_: None)


@pytest.mark.parametrize(
    "text", [b"a: [", b"[1]", b"text", b"\xff", KUBECONFIG.encode().replace(b"{name: me, user: {token: x}}", b"3")]
)
def test_a_malformed_kubeconfig(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(text)
    with pytest.raises(BatchGrowthError, match=r"^no cluster to submit to: the kubeconfig is malformed \(.*--context$"):
        connect_as_user(file, None)
    with pytest.raises(
        BatchGrowthError, match=r"^no cluster to work in: the kubeconfig is malformed \(.*--kubeconfig$"
    ):
        connect(file, lambda *_: None)
