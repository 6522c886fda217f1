"""The generated files of the chart."""

from __future__ import annotations

from pathlib import Path

from charts.dashboard import dashboard
from charts.folders import CHART
from charts.readme import readme
from charts.schema import values_schema
from charts.values import read_values
from charts.warnings import warnings_template


def made() -> dict[Path, str]:
    """Return the text of each generated file by its path."""
    values = read_values((CHART / "values.yaml").read_text())
    return {
        CHART / "README.md": readme(values),
        CHART / "values.schema.json": values_schema(values),
        CHART / "dashboards" / "job.json": dashboard(),
        CHART / "templates" / "warnings.yaml": warnings_template(),
    }
