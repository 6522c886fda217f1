"""The chart as Helm sees it: linted, packaged, complete."""

import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.folders import CHART

Helm = Callable[..., subprocess.CompletedProcess[str]]
VARIANTS = [None, *sorted(CHART.glob("ci/*-values.yaml"))]


@pytest.mark.smoke
@pytest.mark.parametrize("values", VARIANTS, ids=lambda path: path.stem if path else "default")
def test_helm_lints_it(values: Path | None, helm: Helm, chart: Path) -> None:
    """Without a warning."""
    result = helm("lint", chart, "--strict", *(("-f", values) if values else ()))

    assert result.returncode == 0, result.stdout
    assert "[WARNING]" not in result.stdout


def test_the_package_is_complete(helm: Helm, chart: Path, tmp_path: Path) -> None:
    """It holds the Dask operator's chart, and none of ci/."""
    result = helm("package", chart, "--destination", tmp_path)
    assert result.returncode == 0, result.stderr
    [package] = tmp_path.glob("*.tgz")

    with tarfile.open(package) as archive:
        names = set(archive.getnames())
    assert {
        "batchgrowth/values.schema.json",
        "batchgrowth/dashboards/job.json",
        "batchgrowth/files/check.py",
        "batchgrowth/charts/dask-kubernetes-operator/Chart.yaml",
        "batchgrowth/charts/dask-kubernetes-operator/crds/daskcluster.yaml",
    } <= names
    assert [name for name in names if "/ci/" in name] == []


def test_without_the_dask_operator_s_chart_helm_says_so(helm: Helm, tmp_path: Path) -> None:
    """Helm names the missing chart and renders nothing."""
    (tmp_path / "charts").mkdir()
    for path in CHART.iterdir():
        if path.name != "charts":
            (tmp_path / path.name).symlink_to(path)

    result = helm("template", tmp_path)

    assert 0 != result.returncode
    assert "missing in charts/ directory: dask-kubernetes-operator" in result.stderr


def test_the_dask_operator_comes_under_its_version(render: Callable[..., list[dict[str, Any]]]) -> None:
    """Its image has the version in Chart.yaml."""
    [dependency] = yaml.safe_load((CHART / "Chart.yaml").read_text())["dependencies"]
    [found] = [b for b in render() if b["metadata"]["name"] == "batchgrowth-dask-kubernetes-operator" and "spec" in b]

    assert found["spec"]["template"]["spec"]["containers"][0]["image"].endswith(f":{dependency['version']}")
