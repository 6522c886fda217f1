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
        "A test lets each alert fire on its fault, and stay silent while a job trains as it should.\n"
        "With the Prometheus operator: `--set alerts.enabled=true`, and `alerts.labels` with the labels that "
        "Prometheus selects by.\n"
        "With a plain Prometheus: [charts/prometheus.yaml](../charts/prometheus.yaml) loads them from "
        "[alerts.yaml](../charts/batchgrowth/files/alerts.yaml).\n"
        "The alerts of jobs have the labels `namespace` and `job`; those of trainers `namespace` and "
        "`batchgrowth_dev_job`.\n\n"
        "Generated from that file by `make generate`.\n\n" + "\n".join(tables)
    )


def _row(rule: dict[str, Any]) -> str:
    text, after = rule["annotations"]["description"], rule.get("for", "at once")
    return f"| `{rule['alert']}` | {rule['labels']['severity']} | {after} | {text} |\n"
