"""This tier needs a real API server: KUBEBUILDER_ASSETS, or Go to build one with (minutes, once)."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from batchgrowth_operator.api.client import connect

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT), str(Path(__file__).parent)]  # so that the tests can import cluster and operator_field

from operator_field import Field, processes, until  # noqa: E402

from cluster.apiserver import ApiServer  # noqa: E402
from cluster.build import built, folder_of, programs_of_the_api_server, why_no_api_server  # noqa: E402
from cluster.errors import HarnessError  # noqa: E402
from cluster.recipe import TOOLS  # noqa: E402

CRD = "crds/batchgrowthjobs.yaml"
NUMBERS = count()
RENDERED = {"test_admission_warnings.py", "test_operator_bounds.py", "test_operator_rights.py"}
"""Files whose tests render the chart."""
NO_HELM = "needs helm, or Go to build it"
Kubectl = Callable[..., subprocess.CompletedProcess[str]]


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips this folder's tests if there is no API server and none can be built."""
    no_helm = None if folder_of(TOOLS).is_dir() or shutil.which("helm") or shutil.which("go") else NO_HELM
    for item in items:
        if "/tests/apiserver/" in item.path.as_posix():
            reason = why_no_api_server() or (no_helm if item.path.name in RENDERED else None)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the API server before the first test, since it takes longer than a test's time limit."""
    here = any("/tests/apiserver/" in item.path.as_posix() for item in session.items)
    if here and not session.config.option.collectonly and why_no_api_server() is None:
        try:
            programs_of_the_api_server(say)
            if shutil.which("helm") is None and shutil.which("go"):
                built(TOOLS, say)
        except HarnessError as error:
            pytest.exit(f"tests/apiserver: {error}", returncode=1)


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """An API server with the CRD of BatchGrowthJob."""
    with ApiServer() as server:
        applied = server.kubectl("apply", "-f", ROOT / CRD)
        assert applied.returncode == 0, applied.stderr
        established = server.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", ROOT / CRD)
        assert established.returncode == 0, established.stderr
        yield server


@pytest.fixture
def kubectl(apiserver: ApiServer) -> Iterator[Kubectl]:
    """A function that runs kubectl against the API server. All jobs are deleted after the test."""
    yield apiserver.kubectl
    gone = apiserver.kubectl("delete", "batchgrowthjobs", "--all")
    assert gone.returncode == 0, gone.stderr


@pytest.fixture
def digits(kubectl: Kubectl) -> Callable[[], Any]:
    """A function that returns the example job, which was applied, as the server has it now."""
    applied = kubectl("apply", "-f", ROOT / "examples" / "digits.yaml")
    assert applied.returncode == 0, applied.stderr
    return lambda: json.loads(kubectl("get", "bgj", "digits", "-o", "json").stdout)


@pytest.fixture(scope="session")
def preloaded() -> None:
    """Operators are forked from a process that has imported everything, so that they start fast."""
    processes.set_forkserver_preload(["batchgrowth_operator.process", "kopf", "cryptography.x509"])


@pytest.fixture(scope="session")
def dask_crds(apiserver: ApiServer) -> list[Path]:
    """The Dask operator's CRDs, from its wheel."""
    found = importlib.util.find_spec("dask_kubernetes")
    assert found is not None
    [package] = found.submodule_search_locations or []
    crds = sorted(Path(package).glob("operator/deployment/helm/*/crds/*.yaml"))
    for crd in crds:
        applied = apiserver.kubectl("apply", "--server-side", "-f", crd)
        assert applied.returncode == 0, applied.stderr
    until(lambda: apiserver.kubectl("get", "daskclusters").returncode, 0)
    return crds


@pytest.fixture
def make_field(apiserver: ApiServer, dask_crds: list[Path], preloaded: None) -> Iterator[Callable[[], Field]]:
    """A function that creates a namespace."""
    made: list[Field] = []
    api = connect(apiserver.kubeconfig, lambda *_: None)

    def make() -> Field:
        namespace = f"operator-{next(NUMBERS)}"
        created = apiserver.kubectl("create", "namespace", namespace)
        assert created.returncode == 0, created.stderr
        made.append(Field(api, apiserver.kubeconfig, namespace))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def ground(make_field: Callable[[], Field]) -> Field:
    """A new namespace with a running operator."""
    made = make_field()
    made.start()
    return made
