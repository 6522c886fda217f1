"""The chart in one file, with the Dask operator's chart in it, so that Helm needs nothing else."""

from __future__ import annotations

from pathlib import Path

import yaml

from charts import dask_operator
from charts.archive import packed
from charts.folders import CHART

LEFT_OUT = ("charts", "ci")
"""Folders of the chart: where an earlier copy of the Dask operator's chart may be, and values for tests."""


def package(folder: Path) -> Path:
    """Write the archive into the folder and return its path."""
    paths = (path.relative_to(CHART) for path in CHART.rglob("*") if path.is_file())
    own = {
        path.as_posix(): (CHART / path).read_bytes()
        for path in paths
        if path.parts[0] not in LEFT_OUT and not path.name.startswith(".")
    }
    name, dask = yaml.safe_load(own["Chart.yaml"]), dask_operator.released()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name['name']}-{name['version']}.tgz"
    target.write_bytes(packed(name["name"], own | {f"charts/{dask_operator.archive_name()}": dask}))
    return target
