"""The Dask operator's chart, which the installed dask-kubernetes package contains."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from charts.archive import packed

NAME = "dask-kubernetes-operator"
PACKAGE = "dask-kubernetes"


def chart_folder() -> Path:
    """Return the chart's folder in the package."""
    return Path(str(files("dask_kubernetes"))) / "operator" / "deployment" / "helm" / NAME


def chart_values() -> dict[str, Any]:
    """Return the chart's own defaults."""
    values: dict[str, Any] = yaml.safe_load((chart_folder() / "values.yaml").read_text())
    return values


def vendor(folder: Path) -> Path:
    """Write the chart as an archive into the folder, delete older ones and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / archive_name()
    part = target.with_suffix(".part")
    part.write_bytes(released())
    part.replace(target)
    for other in folder.glob(f"{NAME}-*.tgz"):
        if other != target:
            other.unlink()
    return target


def archive_name() -> str:
    """Return the file name of the chart's archive."""
    return f"{NAME}-{version(PACKAGE)}.tgz"


def released() -> bytes:
    """Return the chart's archive.

    Fills in the package's placeholders for the version and the image's tag, as its publishers do.
    The same package gives the same bytes.
    """
    source = chart_folder()
    names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    return packed(NAME, {name: _released(name, (source / name).read_bytes()) for name in names})


def _released(name: str, content: bytes) -> bytes:
    """Return the file as published, with the package's version."""
    own = version(PACKAGE)
    if name == "Chart.yaml":
        return _dumped(yaml.safe_load(content) | {"version": own, "appVersion": own})
    if name == "values.yaml":
        values = yaml.safe_load(content)
        values["image"]["tag"] = own
        return _dumped(values)
    return content


def _dumped(data: dict[str, Any]) -> bytes:
    return yaml.safe_dump(data, sort_keys=False).encode()
