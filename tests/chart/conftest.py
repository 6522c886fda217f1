"""Most of these tests need helm, built or on PATH; some also an API server, or Prometheus."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # so that the tests can import charts and cluster

from charts import dask_operator  # noqa: E402
from charts.folders import CHART  # noqa: E402
from cluster.apiserver import ApiServer  # noqa: E402
from cluster.build import ASSETS, folder_of  # noqa: E402
from cluster.prometheus import Prometheus  # noqa: E402
from cluster.recipe import APISERVER, KUBERNETES, PROMETHEUS, TOOLS  # noqa: E402
from cluster.release import settings_of_helm  # noqa: E402

RELEASE = "batchgrowth"
IMAGES = ("-f", str(CHART / "ci" / "images-values.yaml"))
"""The chart has no default images: every other file of values comes on top."""
VARIANTS = {"default": (), **{p.stem.removesuffix("-values"): ("-f", str(p)) for p in CHART.glob("ci/*-values.yaml")}}
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one of libyaml, if PyYAML has it, is ten times as fast."""
Objects = list[dict[str, Any]]
Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., Objects]


class Strict(LOADER):  # type: ignore[misc]  (known only when it runs)
    """Refuses a map with a key twice, as the parser of Flux and kustomize does; Helm takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        assert len(mapping) == len(node.value), f"a key is there twice:{node.start_mark}"
        return mapping


def _helm() -> str | None:
    """Returns the cached helm, else the one on PATH."""
    own = folder_of(TOOLS) / "helm"
    return str(own) if own.is_file() else shutil.which("helm")


def _why_missing() -> dict[str, str]:
    """Return a reason to skip for each fixture whose program is missing."""
    there = {
        "helm": _helm() is not None,
        "prometheus": folder_of(PROMETHEUS).is_dir(),
        "apiserver": ASSETS in os.environ or folder_of(APISERVER).is_dir(),
    }
    return {name: f"needs {name}: `make built` builds it with Go" for name, found in there.items() if not found}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a missing program; none is built here, because `make test` must not take that long."""
    missing = _why_missing()
    for item in items:
        if "/tests/chart/" in item.path.as_posix():
            for name in missing.keys() & set(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.skip(reason=missing[name]))


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Returns a function that runs helm, with its state in a temporary folder, and with no cluster unless one is given.

    It has the rest of the environment: a helm on PATH may be a script that looks there for the program.
    """
    program, home = _helm(), tmp_path_factory.mktemp("helm")
    assert program is not None

    def call(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        own = settings_of_helm(home) | {"KUBECONFIG": str(home / "none")}
        words = [program, *map(str, arguments)]
        return subprocess.run(words, env=os.environ | own | environment, capture_output=True, text=True, check=False)

    return call


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the chart outside the working tree, with the Dask operator's vendored."""
    copy = tmp_path_factory.mktemp("chart") / CHART.name
    shutil.copytree(CHART, copy, ignore=shutil.ignore_patterns("charts"))
    dask_operator.vendor(copy / "charts")
    return copy


@pytest.fixture(scope="session")
def render(helm: Helm, chart: Path) -> Render:
    """Returns a function that renders the chart in the namespace `operators`; returns the objects, hooks included."""
    known: dict[tuple[str, ...], str] = {}

    def objects(*arguments: str, release: str = RELEASE) -> Objects:
        words = (release, *arguments)
        if words not in known:
            place = (str(chart), "--namespace", "operators", "--kube-version", KUBERNETES)
            done = helm("template", release, *place, *IMAGES, *arguments)
            assert done.returncode == 0, done.stderr
            known[words] = done.stdout
        return [body for body in yaml.load_all(known[words], Strict) if body]

    return objects


@pytest.fixture(params=VARIANTS)
def rendered(request: pytest.FixtureRequest, render: Render) -> Objects:
    """The objects rendered with the default values, and with each values file in ci/."""
    return render(*VARIANTS[request.param])


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """An API server with its controllers, and no node."""
    with ApiServer(controller_manager=True) as server:
        yield server


@pytest.fixture(scope="session")
def prometheus() -> Iterator[Prometheus]:
    """A Prometheus that scrapes nothing."""
    with Prometheus() as server:
        yield server
