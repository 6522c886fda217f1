"""The Grafana dashboard of one job."""

from __future__ import annotations

import json
from typing import Any

from charts.job_panels import ROWS
from charts.panels import DATASOURCE, placed
from charts.queries import JOB

SCHEMA_VERSION = 41


def dashboard() -> str:
    """The text of dashboards/job.json."""
    told = {
        "uid": "batchgrowth-job",
        "title": "BatchGrowthJob",
        "description": "One training job: how it learns, how its batch and its workers grow, and how fast it goes.",
        "tags": ["batchgrowth"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "links": [],
        "annotations": {"list": []},
        "templating": {"list": _variables()},
        "panels": placed(ROWS),
    }
    return json.dumps(told, indent=2) + "\n"


def _variables() -> list[dict[str, Any]]:
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "refresh": 1,
        "current": {},
        "options": [],
        "hide": 0,
        "multi": False,
        "includeAll": False,
    }
    metric = "batchgrowth_progress_ratio"
    return [
        source,
        _variable("namespace", "Namespace", f"label_values({metric}, namespace)"),
        _variable("job", "Job", f'label_values({metric}{{namespace="$namespace"}}, {JOB})'),
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A variable that is looked up whenever the time range changes: jobs come and go."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "regex": "",
        "current": {},
        "options": [],
        "hide": 0,
        "multi": False,
        "includeAll": False,
    }
