"""`batchgrowth submit` against a real API server."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.errors import BatchGrowthError
from batchgrowth_operator.commands import submit

from cluster.apiserver import ApiServer

SPIRAL = Path(__file__).parents[2] / "examples" / "spiral"
Kubectl = Callable[..., Any]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with a module, a package with a module, and data that is no text."""
    (tmp_path / "layers").mkdir()
    (tmp_path / "spiral.py").write_text((SPIRAL / "spiral.py").read_text())
    (tmp_path / "layers" / "norm.py").write_text("'''Ünïcode, and \"quotes\"'''\n")
    (tmp_path / "layers" / "table.npy").write_bytes(bytes(range(256)))
    return tmp_path


def objects(kubectl: Kubectl, kind: str, *more: str) -> Any:
    return json.loads(kubectl("get", kind, "--output", "json", *more).stdout)


def test_code_and_job(apiserver: ApiServer, kubectl: Kubectl, code: Path) -> None:
    """What was packed is what pods will mount; the job owns it, and a second submission changes nothing."""
    for _ in range(2):
        submit(SPIRAL / "job.yaml", code=code, kubeconfig=apiserver.kubeconfig)

    job = objects(kubectl, "bgj", "spiral")
    [config_map] = objects(kubectl, "configmaps", "--selector", "batchgrowth.dev/code-of=spiral")["items"]
    source = job["spec"]["workload"]["source"]
    stored = {key: text.encode() for key, text in config_map["data"].items()}
    stored |= {key: base64.b64decode(text) for key, text in config_map["binaryData"].items()}
    files = {path.relative_to(code).as_posix(): path.read_bytes() for path in code.rglob("*") if path.is_file()}

    assert config_map["metadata"]["name"] == source["configMap"]
    assert files == {item["path"]: stored[item["key"]] for item in source["items"]}
    assert ([job["metadata"]["uid"]], True) == (
        [owner["uid"] for owner in config_map["metadata"]["ownerReferences"]],
        config_map["immutable"],
    )
    assert job["metadata"]["generation"] == 1


def test_other_code_of_a_started_job_is_refused(apiserver: ApiServer, kubectl: Kubectl, code: Path) -> None:
    """And is not stored."""
    submit(SPIRAL / "job.yaml", code=code, kubeconfig=apiserver.kubeconfig)
    started = json.dumps({"status": {"startTime": "2026-11-20T10:00:00Z"}})
    kubectl("patch", "bgj", "spiral", "--subresource=status", "--type=merge", "--patch", started)
    before = objects(kubectl, "configmaps")["items"]
    (code / "spiral.py").write_text("changed = True\n")

    with pytest.raises(BatchGrowthError, match="the code of a job does not change once it has started; make a new job"):
        submit(SPIRAL / "job.yaml", code=code, kubeconfig=apiserver.kubeconfig)

    assert [each["metadata"]["name"] for each in before] == [
        each["metadata"]["name"] for each in objects(kubectl, "configmaps")["items"]
    ]


def test_fields_that_others_have_set(apiserver: ApiServer, kubectl: Kubectl) -> None:
    submit(SPIRAL / "job.yaml", kubeconfig=apiserver.kubeconfig)
    kubectl("scale", "bgj", "spiral", "--replicas=3")

    with pytest.raises(BatchGrowthError, match=r"conflict.*\.spec\.workers\.maximum.*--force-conflicts"):
        submit(SPIRAL / "job.yaml", kubeconfig=apiserver.kubeconfig)
    submit(SPIRAL / "job.yaml", kubeconfig=apiserver.kubeconfig, force_conflicts=True)

    assert 3 != objects(kubectl, "bgj", "spiral")["spec"]["workers"]["maximum"]


def test_a_user_without_rights_is_told_which(apiserver: ApiServer, kubectl: Kubectl, code: Path) -> None:
    nobody, before = apiserver.client("nobody", "nobody"), objects(kubectl, "configmaps")["items"]
    with pytest.raises(BatchGrowthError, match='cannot get resource "batchgrowthjobs"'):
        submit(SPIRAL / "job.yaml", code=code, kubeconfig=nobody)
    assert before == objects(kubectl, "configmaps")["items"]


def test_a_namespace_that_is_not_there(apiserver: ApiServer, kubectl: Kubectl) -> None:
    with pytest.raises(BatchGrowthError, match=r'in namespace absent: .*"absent" not found'):
        submit(SPIRAL / "job.yaml", namespace="absent", kubeconfig=apiserver.kubeconfig)
