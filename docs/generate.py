"""Writes the generated pages and tables of the documentation: `python -m docs.generate`."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from pathlib import Path

from batchgrowth.choices import CHOICES
from batchgrowth.contract.metrics import OPERATOR, TRAINER, Metric
from batchgrowth.contract.status import COMPUTED_WRONGLY, CONDITIONS, REASONS, STAGE_BEGAN, STATUS_REFUSED
from batchgrowth.registry import Entry
from batchgrowth_trainer.record.summary import Summary
from pydantic.fields import FieldInfo

from docs.alerts import alerts_page
from docs.faults import faults_page
from docs.mistakes import mistakes_page

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- choices: made by `make generate` -->\n", "<!-- /choices -->"


def choices_table() -> str:
    """Return the Markdown table of README.md: a row per choice."""
    rows = (f"| `{choice.field_path}` | {', '.join(f'`{name}`' for name in choice)} |\n" for choice in CHOICES)
    return "| in the manifest | choices |\n|---|---|\n" + "".join(rows)


def with_choices(text: str) -> str:
    """Return a Markdown page with its table of choices replaced; raises ValueError if it has no markers for one."""
    made, count = re.subn(f"({BEGIN}).*?({END})", lambda m: m[1] + choices_table() + m[2], text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the page has {count} tables of choices; give one pair of markers {BEGIN!r} and {END!r}")
    return made


def choices_page() -> str:
    """docs/choices.md: a table of entries with their settings for each choice."""
    head = "| name | what it does | settings | source |\n|---|---|---|---|\n"
    parts = [f"## `{choice.field_path}`\n\n{head}" + "".join(map(_entry_row, choice.values())) for choice in CHOICES]
    return (
        "# Choices of the manifest\n\nThe first method of each table is the default. A setting is shown with its "
        "default; of the others, only those with a question mark are optional.\n"
        "You can add methods of your own: [extending.md](extending.md); `make generate` writes this page.\n\n"
        + "\n".join(parts)
    )


def _entry_row(entry: Entry) -> str:
    fields = entry.block.model_fields if entry.block is not None else {}
    settings = ", ".join(map(_setting, fields.values()))
    return f"| `{entry.name}` | {entry.summary} | {settings} | {entry.source} |\n"


def _setting(field: FieldInfo) -> str:
    """Return the setting's name and its default; a question mark if it is optional and has none."""
    if field.is_required():
        return f"`{field.alias}`"
    if field.default is None or field.default_factory:
        return f"`{field.alias}`?"
    return f"`{field.alias}: {json.dumps(field.default)}`"


def conditions_page() -> str:
    """docs/conditions.md: a list of reasons for each condition, and one of those that several conditions have."""
    shared = _shared_reasons()
    groups = (
        f"{', '.join(f'`{kind}`' for kind in kinds)}:\n\n"
        + "".join(f"- `{reason}`: {text}\n" for (reason, text), some in shared.items() if some == kinds)
        for kinds in dict.fromkeys(shared.values())
    )
    parts = [f"## {kind}\n\n{meaning}\n{_own_reasons(kind, shared)}" for kind, meaning in CONDITIONS.items()]
    return (
        "# Conditions and events\n\n`kubectl describe bgj NAME` shows these conditions, each with one of its reasons "
        "and a message that names the object and a remedy.\n"
        "A change of a condition is also an event with the same reason, except for ordinary reasons "
        "such as `WaitingForWorkers`. "
        f"The event `{STAGE_BEGAN}` reports a new stage, `{STATUS_REFUSED}` a status that the API server has refused, "
        f"and `{COMPUTED_WRONGLY}` a worker that a [spot check](arithmetic.md#spot-checks) found to compute wrongly; "
        "`status.findings` keeps its pod, its node and what was undone.\n"
        "A condition flaps if it turns bad five times, each time less than ten minutes after the last. It "
        "then stays bad until there has been no trouble for five minutes, the spec is edited or the job ends.\n"
        "`make generate` writes this page from `batchgrowth.contract.status`.\n\n"
        "## Reasons of several conditions\n\n" + "\n".join((*groups, *parts))
    )


def _shared_reasons() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the conditions of each reason that several have with the same meaning."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for kind, reasons in REASONS.items():
        for reason in reasons.items():
            kinds.setdefault(reason, []).append(kind)
    return {reason: tuple(some) for reason, some in kinds.items() if len(some) > 1}


def _own_reasons(kind: str, shared: Container[tuple[str, str]]) -> str:
    """Return the list of the reasons that only this condition has, and a link to those that it shares."""
    own = [reason for reason in REASONS[kind].items() if reason not in shared]
    also = "\nSee also [above](#reasons-of-several-conditions).\n" * (len(own) < len(REASONS[kind]))
    return "\n" * bool(own) + "".join(f"- `{reason}`: {text}\n" for reason, text in own) + also


def metrics_table() -> str:
    """docs/metrics.md: one table for the trainer and one for the operator."""
    head = "| name | kind | labels | meaning |\n|---|---|---|---|\n"
    rooms = (("Trainer", TRAINER), ("Operator", OPERATOR))
    tables = [f"## {room}\n\n{head}" + "\n".join(map(_metric_row, metrics)) + "\n" for room, metrics in rooms]
    source = (
        "`make generate` writes this page from `batchgrowth.contract.metrics`.\n"
        "On your machine, [every user can read](shared-machines.md#what-others-can-see) the metrics of a run."
    )
    return f"# Metrics\n\n{source}\n\n" + "\n".join(tables)


def _metric_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


def summary_page() -> str:
    """docs/summary.md: a row for each key of summary.json."""
    fields = Summary.model_fields.values()
    rows = "".join(f"| `{field.alias}` | {field.description} |\n" for field in fields)
    return (
        "# The summary of a run\n\nOnly a finished run has a `summary.json` in its folder; `run.summary` is the same "
        "in Python. It is standard JSON: a number that is not finite is `null`.\n"
        "`make generate` writes this page from `batchgrowth_trainer.record.summary`.\n\n"
        "| key | meaning |\n|---|---|\n" + rows
    )


def generated() -> dict[Path, str]:
    """Each generated page, or page with a generated table, and its text."""
    readme = ROOT / "README.md"
    return {
        ROOT / "docs" / "alerts.md": alerts_page(),
        ROOT / "docs" / "choices.md": choices_page(),
        ROOT / "docs" / "conditions.md": conditions_page(),
        ROOT / "docs" / "faults.md": faults_page(),
        ROOT / "docs" / "metrics.md": metrics_table(),
        ROOT / "docs" / "mistakes.md": mistakes_page(),
        ROOT / "docs" / "summary.md": summary_page(),
        readme: with_choices(readme.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    for page, text in generated().items():
        page.write_text(text, encoding="utf-8")
