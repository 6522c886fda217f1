"""docs/alerts.md, made from the chart's file of alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ALERTS = Path(__file__).parents[1] / "charts" / "batchgrowth" / "files" / "alerts.yaml"
_TITLES = {"batchgrowth-operator": "Operator", "batchgrowth-jobs": "Jobs", "batchgrowth-trainers": "Trainers"}


def alerts_page() -> str:
    """Return a table of the alerts of each group."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    head = "| alert | severity | after | what it means, and what to do |\n|---|---|---|---|\n"
    tables = [f"## {_TITLES[group['name']]}\n\n{head}" + "".join(map(_row, group["rules"])) for group in groups]
    return (
        "# Alerts\n\n"
        "[On Kubernetes](kubernetes.md#metrics) says how Prometheus loads them.\n"
        "An alert about a job has the labels `job_namespace` and `job_name`; one about a trainer has `namespace` and "
        "`batchgrowth_dev_job`.\n\n"
        "`make generate` writes this page from [alerts.yaml](../charts/batchgrowth/files/alerts.yaml).\n\n"
        + "\n".join(tables)
    )


def _row(rule: dict[str, Any]) -> str:
    text, after = rule["annotations"]["description"], rule.get("for", "at once")
    return f"| `{rule['alert']}` | {rule['labels']['severity']} | {after} | {text} |\n"
