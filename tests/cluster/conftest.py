"""This tier needs a real Kubernetes: Linux, root and Go to build one (minutes, once), and Debian's packages for it.

The chart is installed once, and each test has a namespace of its own that takes restricted pods alone.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT), str(Path(__file__).parent)]  # so that the tests can import cluster and real_job

from real_job import Kubectl, RealJob, said  # noqa: E402

from cluster import build, dask_image, debian, images, release  # noqa: E402
from cluster.errors import HarnessError  # noqa: E402
from cluster.local import LocalCluster, local_cluster  # noqa: E402
from cluster.locks import alone  # noqa: E402
from cluster.recipe import GROUPS  # noqa: E402

FAKE_NODES, GPUS = 16, 8
LONGEST_TEST_SECONDS = 600

MakeJob = Callable[..., RealJob]


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def why_no_cluster() -> str | None:
    """Why there can be no cluster here, or nothing where there can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs Linux and root: a node makes network namespaces and mounts"
    if shutil.which("go") is None:
        return "needs Go to build Kubernetes with"
    try:
        debian.require((*debian.NODE, *debian.IMAGES))
    except HarnessError as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what lies here where there is no cluster to be had; the first test waits for cluster and chart."""
    reason = why_no_cluster()
    for item in items:
        if "/tests/cluster/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(LONGEST_TEST_SECONDS))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test: no test's time limit has room for it."""
    here = any("/tests/cluster/" in item.path.as_posix() for item in session.items)
    if here and not session.config.option.collectonly and why_no_cluster() is None:
        try:
            for group in GROUPS:
                build.built(group, say)
            with alone("images"):
                for target in images.TARGETS:
                    images.archives_of(target, say)
                dask_image.archives_of_the_dask_operator(say)
        except HarnessError as error:
            pytest.exit(f"tests/cluster: {error}", returncode=1)


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[LocalCluster]:
    """The cluster of this machine; one that was not up is taken down after the last test."""
    cluster = local_cluster()
    was_up = cluster.is_up()
    if not was_up:
        command("up", f"--fake-nodes={FAKE_NODES}", f"--gpus={GPUS}")
    yield cluster
    if not was_up:
        command("down")


def command(*words: str) -> None:
    """`python -m cluster`, as a user has it: the servers that it starts are no children of this process."""
    done = subprocess.run(
        [sys.executable, "-m", "cluster", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr


@pytest.fixture(scope="session")
def installed(real_cluster: LocalCluster) -> LocalCluster:
    """The cluster with the chart on it: the operator, and the Dask operator, in pods of their own."""
    release.install(real_cluster, say=say)
    return real_cluster


@pytest.fixture
def kubectl(installed: LocalCluster) -> Kubectl:
    """A function: what kubectl says to the cluster that has the chart."""
    return installed.kubectl


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A new namespace that takes restricted pods alone; it goes, with its pods, when the test is over."""
    name = f"test-{secrets.token_hex(3)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": release.RESTRICTED}}
    said(kubectl("create", "--filename", "-", given=json.dumps(body)))
    yield name
    said(kubectl("--namespace", name, "delete", "batchgrowthjobs", "--all", "--wait=false"))
    said(kubectl("--namespace", name, "delete", "pods", "--all", "--grace-period=1", "--wait=false"))
    said(kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false"))


@pytest.fixture
def job(kubectl: Kubectl, namespace: str) -> MakeJob:
    """A function: a job of this manifest (YAML text or an object), applied in the test's namespace."""

    def applied(manifest: str | dict[str, object]) -> RealJob:
        body = yaml.safe_load(manifest) if isinstance(manifest, str) else manifest
        said(kubectl("--namespace", namespace, "apply", "--filename", "-", given=json.dumps(body)))
        return RealJob(kubectl, namespace, body["metadata"]["name"])

    return applied


@pytest.fixture(scope="session")
def local_sha256(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A function: the digest of the weights that `batchgrowth run` on this machine makes of a manifest."""
    known: dict[str, str] = {}

    def trained(manifest: str) -> str:
        if manifest not in known:
            folder = tmp_path_factory.mktemp("local")
            (folder / "job.yaml").write_text(manifest)
            words = [Path(sys.executable).parent / "batchgrowth", "run", "job.yaml", "--output-dir", "out"]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
            assert 0 == done.returncode, done.stderr
            known[manifest] = json.loads((folder / "out" / "summary.json").read_text())["weightsSha256"]
        return known[manifest]

    return trained
