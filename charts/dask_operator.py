"""The Dask operator's chart, which the installed dask-kubernetes package contains."""

from __future__ import annotations

import gzip
import io
import tarfile
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

NAME = "dask-kubernetes-operator"
PACKAGE = "dask-kubernetes"


def chart_folder() -> Path:
    """The chart's folder in the package."""
    return Path(str(files("dask_kubernetes"))) / "operator" / "deployment" / "helm" / NAME


def chart_values() -> dict[str, Any]:
    """The chart's own defaults."""
    values: dict[str, Any] = yaml.safe_load((chart_folder() / "values.yaml").read_text())
    return values


def vendor(folder: Path) -> Path:
    """Writes the chart as an archive into the folder, deletes older ones and returns its path.

    Fills in the package's placeholders for the version and the image's tag, as its publishers do.
    The same package gives the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{NAME}-{version(PACKAGE)}.tgz"
    part = target.with_suffix(".part")
    part.write_bytes(gzip.compress(_archive(), mtime=0))
    part.replace(target)
    for other in folder.glob(f"{NAME}-*.tgz"):
        if other != target:
            other.unlink()
    return target


def _archive() -> bytes:
    buffer = io.BytesIO()
    source = chart_folder()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            name = path.relative_to(source).as_posix()
            content = _released(name, path.read_bytes())
            entry = tarfile.TarInfo(f"{NAME}/{name}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _released(name: str, content: bytes) -> bytes:
    """The file as published, with the package's version."""
    released = version(PACKAGE)
    if name == "Chart.yaml":
        return _dumped(yaml.safe_load(content) | {"version": released, "appVersion": released})
    if name == "values.yaml":
        values = yaml.safe_load(content)
        values["image"]["tag"] = released
        return _dumped(values)
    return content


def _dumped(data: dict[str, Any]) -> bytes:
    return yaml.safe_dump(data, sort_keys=False).encode()
