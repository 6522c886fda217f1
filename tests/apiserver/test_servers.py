"""The API server of these tests: it restarts, runs the garbage collector, and never outlives its test."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cluster.apiserver import ApiServer
from cluster.build import programs_of_the_api_server, silence
from cluster.errors import HarnessError

ROOT = Path(__file__).parents[2]

# Prints the pids of its servers and is killed while they run.
KILLED = """
import os, psutil, signal
from cluster.apiserver import ApiServer
with ApiServer() as server:
    print(server.kubeconfig.parent, *(child.pid for child in psutil.Process().children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def wait_until(true: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether the condition became true in time."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def is_running(pid: int) -> bool:
    """Whether the process runs and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_nothing_is_left_of_a_killed_test() -> None:
    """After SIGKILL of the process that started them, no server runs and no folder is left."""
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, capture_output=True, text=True)
    folder, *pids = killed.stdout.split()
    assert (-signal.SIGKILL, 3) == (killed.returncode, len(pids)), killed.stderr
    assert wait_until(lambda: not any(is_running(int(pid)) for pid in pids))
    assert wait_until(lambda: not Path(folder).exists())


def test_the_data_outlives_the_server() -> None:
    """A restarted API server still has its objects."""
    with ApiServer() as server:
        assert server.kubectl("create", "configmap", "kept", "--from-literal=a=b").returncode == 0
        server.stop_serving()
        assert 0 != server.kubectl("get", "configmap", "kept").returncode
        server.serve_again()
        assert server.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.a}").stdout == "b"


@pytest.mark.skipif("KUBEBUILDER_ASSETS" in os.environ, reason="these programs have no kube-controller-manager")
def test_controllers_collect_garbage() -> None:
    """Objects owned by a deleted object are deleted."""
    with ApiServer(controller_manager=True) as server:
        server.kubectl("create", "configmap", "owner")
        uid = server.kubectl("get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}").stdout
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
        child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child", "ownerReferences": [owner]}}
        assert server.kubectl("create", "-f", "-", given=json.dumps(child)).returncode == 0
        server.kubectl("delete", "configmap", "owner")
        assert wait_until(lambda: server.kubectl("get", "configmap", "child").returncode != 0)


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message contains etcd's output, and nothing is left."""
    programs = programs_of_the_api_server(silence)
    for name in ("kube-apiserver", "kubectl"):
        (tmp_path / name).symlink_to(programs / name)
    (tmp_path / "etcd").write_text("#!/bin/sh\necho no such luck\nexit 3\n")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    before = psutil.Process().children()
    with pytest.raises(HarnessError, match=r"etcd ended with code 3; its log ends:\nno such luck"), ApiServer():
        pass
    assert before == psutil.Process().children()


def test_assets_without_a_program_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(HarnessError, match="has no etcd, kube-apiserver, kubectl"):
        ApiServer()
