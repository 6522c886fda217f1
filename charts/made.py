"""Every file of the chart that is made from something else."""

from __future__ import annotations

from pathlib import Path

from charts.crd import crd_template
from charts.dashboard import dashboard
from charts.folders import CHART, ROOT
from charts.readme import readme
from charts.schema import values_schema
from charts.values import read_values


def made() -> dict[Path, str]:
    """Path -> the text that belongs there."""
    values = read_values((CHART / "values.yaml").read_text())
    return {
        CHART / "README.md": readme(values),
        CHART / "values.schema.json": values_schema(values),
        CHART / "templates" / "crd.yaml": crd_template(),
        CHART / "dashboards" / "job.json": dashboard(),
        CHART / "files" / "digits.yaml": (ROOT / "examples" / "digits.yaml").read_text(),
    }
