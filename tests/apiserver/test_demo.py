"""The demo and the harness on a cluster of the user's own, which a kubeconfig names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster import demo
from cluster.apiserver import ApiServer
from cluster.errors import HarnessError
from cluster.users import KUBECONFIG, VALUES, UsersCluster, read_values, users_cluster

TIME = "2026-01-01T00:00:00Z"
Kubectl = Callable[..., Any]


@pytest.fixture
def users(apiserver: ApiServer) -> UsersCluster:
    """The API server as a user's cluster."""
    return UsersCluster(apiserver.kubeconfig)


def condition(kind: str, status: str, message: str) -> dict[str, str]:
    """One entry of the status."""
    return {"type": kind, "status": status, "reason": "Test", "message": message, "lastTransitionTime": TIME}


def write_status(kubectl: Kubectl, **status: Any) -> None:
    """Writes the status as the operator does."""
    body = json.dumps({"status": status})
    done = kubectl("patch", "bgj", "digits", "--subresource=status", "--type=merge", "--patch", body)
    assert done.returncode == 0, done.stderr


def test_the_demo_prints_changes_until_the_job_ends(
    users: UsersCluster, digits: Callable[[], Any], kubectl: Kubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    """One object per change of phase, batch, workers or trouble; then the reason for the failure."""
    write_status(kubectl, phase="Pending", conditions=[condition("Stalled", "True", "Raise the quota.")])
    jobs = demo.changes(users, "digits", "default")

    first = next(jobs)
    write_status(
        kubectl, phase="Failed", batch={"current": 64}, conditions=[condition("Succeeded", "False", "The loss is NaN.")]
    )
    [last] = jobs
    demo.print_result(last)

    printed = capsys.readouterr().out.splitlines()
    assert first["status"]["phase"] == "Pending"
    assert (last["status"]["phase"], last["status"]["batch"]["current"]) == ("Failed", 64)
    assert printed[0].split() == ["STATUS", "BATCH", "WORKERS", "EPOCH", "LOSS", "PROGRESS", "ETA(S)", "AGE"]
    assert printed[-1] == "The loss is NaN."


def test_the_demo_ends_if_the_spec_is_refused(
    users: UsersCluster, digits: Callable[[], Any], kubectl: Kubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is printed with the line of the phase, not again as the result."""
    write_status(kubectl, phase="Rejected", conditions=[condition("Accepted", "False", "Give a smaller batch.")])

    [job] = demo.changes(users, "digits", "default")
    heading = capsys.readouterr().out
    demo.print_result(job)

    assert "STATUS" in heading
    assert capsys.readouterr().out == ""


def test_the_demo_prints_the_weights_of_a_job_that_succeeded(capsys: pytest.CaptureFixture[str]) -> None:
    """With its stages and their pauses."""
    stages = [{"index": 0, "batchSize": 32, "workers": 1}, {"index": 1, "batchSize": 2048, "workers": 4}]
    stages[1]["pauseSeconds"] = "0.05"  # type: ignore[assignment]
    demo.print_result(
        {"status": {"phase": "Succeeded", "history": stages, "trainerStatus": {"weightsSha256": "ab" * 32}}}
    )

    assert capsys.readouterr().out.splitlines() == [
        "stage 1: batch 32, 1 worker",
        "stage 2: batch 2,048, 4 workers, longest pause 0.05 s",
        f"SHA-256 of the weights: {'ab' * 32}",
    ]


def test_the_demo_ends_if_the_job_is_deleted(users: UsersCluster) -> None:
    """It would wait forever."""
    with pytest.raises(HarnessError, match="the job absent was deleted"):
        next(demo.changes(users, "absent", "default"))


def test_variables_name_the_cluster_and_its_values(
    apiserver: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them there is none; one that does not answer is an error."""
    monkeypatch.delenv(KUBECONFIG, raising=False)
    assert users_cluster() is None
    (tmp_path / "values.yaml").write_text("image: {repository: registry.example/operator}")
    monkeypatch.setenv(VALUES, str(tmp_path / "values.yaml"))
    monkeypatch.setenv(KUBECONFIG, str(apiserver.kubeconfig))

    found = users_cluster()

    assert UsersCluster(apiserver.kubeconfig, {"image": {"repository": "registry.example/operator"}}) == found
    monkeypatch.setenv(KUBECONFIG, str(tmp_path / "none"))
    with pytest.raises(HarnessError, match="does not answer"):
        users_cluster()


@pytest.mark.parametrize("text", ["a: [", "- a", None])
def test_a_file_without_values_is_an_error(text: str | None, tmp_path: Path) -> None:
    """Broken YAML, a list, or no file."""
    if text is not None:
        (tmp_path / "values.yaml").write_text(text)
    with pytest.raises(HarnessError, match=r"(?s)values\.yaml: .*; give a"):
        read_values(tmp_path / "values.yaml")
