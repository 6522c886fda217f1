"""Generated files are up to date."""

import re
import tarfile
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from repository import tracked

from charts import dask_operator
from charts.folders import CHART, ROOT
from charts.made import made

METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text())


@pytest.mark.smoke
@pytest.mark.parametrize("path", made(), ids=lambda path: path.name)
def test_no_drift(path: Path) -> None:
    """`make generate` would change nothing."""
    assert made()[path] == path.read_text(), "run: python -m charts generate"


@pytest.mark.smoke
def test_the_chart_has_the_project_s_version() -> None:
    """Chart, application and Python package go together."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert (project, project) == (METADATA["version"], METADATA["appVersion"])


@pytest.mark.smoke
def test_the_dependency_is_the_locked_one() -> None:
    """The chart names the version of dask-kubernetes that requirements.lock does."""
    [dependency] = METADATA["dependencies"]
    locked = re.search(r"^dask-kubernetes==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)

    assert locked is not None
    assert (dask_operator.NAME, locked[1]) == (dependency["name"], dependency["version"])
    assert version(dask_operator.PACKAGE) == dependency["version"]


def test_the_example_of_the_annotation_is_the_example() -> None:
    """Artifact Hub shows examples/digits.yaml."""
    [shown] = yaml.safe_load(METADATA["annotations"]["artifacthub.io/crdsExamples"])

    assert yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text()) == shown


@pytest.mark.fault("F08")
def test_the_dask_operator_is_packed_as_it_is_published(tmp_path: Path) -> None:
    """Placeholders are filled in, no file is missing, and the same package gives the same bytes."""
    (tmp_path / f"{dask_operator.NAME}-2020.1.0.tgz").touch()
    packed = dask_operator.vendor(tmp_path)
    first = packed.read_bytes()

    assert [packed] == list(tmp_path.iterdir())
    assert first == dask_operator.vendor(tmp_path).read_bytes()
    with tarfile.open(packed) as archive:
        names = {name.removeprefix(f"{dask_operator.NAME}/") for name in archive.getnames()}
        texts = {name: archive.extractfile(f"{dask_operator.NAME}/{name}").read().decode() for name in names}  # type: ignore[union-attr]
    source = dask_operator.chart_folder()
    assert {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()} == names
    assert version(dask_operator.PACKAGE) == yaml.safe_load(texts["Chart.yaml"])["version"]
    assert version(dask_operator.PACKAGE) == yaml.safe_load(texts["values.yaml"])["image"]["tag"]
    assert [name for name, text in texts.items() if re.search(r"set.by.chartpress", text)] == []


def test_git_has_none_of_the_dask_operator_s_files() -> None:
    """They come out of the installed package."""
    assert [path for path in tracked() if ROOT / "charts" / "batchgrowth" / "charts" in path.parents] == []
