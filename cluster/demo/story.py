"""The end of a demo: what happened, and what can be done now."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.demo import words
from cluster.demo.picture import stage_table
from cluster.demo.seen import Seen, now
from cluster.local import programs
from cluster.release import NAMESPACE, RELEASE


def story(seen: Seen) -> RenderableType:
    """The stages with their times, pauses and workers; the numbers at the end; the weights' SHA-256."""
    return Group(_headline(seen), Text(), stage_table(seen, now()), Text(), _result(seen))


def goodbye(console: Console, seen: Seen, kubeconfig: Path) -> None:
    """Prints commands that lead on, so that they can be copied as they are."""
    place = f"{seen.name} --namespace {seen.namespace}"
    commands = {
        **_preparations(kubeconfig),
        f"kubectl describe bgj {place}": "every condition, and the events",
        f"kubectl port-forward --namespace {NAMESPACE} service/{RELEASE}-metrics 9090": "the operator's metrics",
        ".venv/bin/python -m cluster prometheus": "a Prometheus that scrapes operator and trainers",
        f"kubectl delete bgj {place}": "away with the job; `make demo` begins again",
    }
    console.print(Text("\nGo on with", style="bold"))
    for command, what in commands.items():
        console.print(Text.assemble("  ", (command, "cyan"), (f"   # {what}", "dim")), soft_wrap=True)
    console.print(Text("Grafana shows charts/batchgrowth/dashboards/job.json once it is imported there.", style="dim"))


def _preparations(kubeconfig: Path) -> dict[str, str]:
    """What a shell has to know before it can use kubectl as the demo did."""
    told = {}
    if os.environ.get("KUBECONFIG") != str(kubeconfig):
        told[f"export KUBECONFIG={kubeconfig}"] = "this cluster"
    if shutil.which("kubectl") is None:
        told[f"export PATH={programs()['kubectl'].parent}:$PATH"] = "kubectl"
    return told


def _headline(seen: Seen) -> Text:
    took = words.seconds(((seen.ended or now()) - seen.applied).total_seconds())
    if seen.status.phase == "Succeeded":
        updates = f"{seen.plan.updates:,} updates of {seen.plan.epochs} epochs"
        return Text.assemble(
            (seen.name, "bold"), (" has succeeded", "bold green"), f": {updates} in {took} after apply"
        )
    why = next((c.message for c in seen.status.conditions if c.type == "Succeeded"), "")
    return Text.assemble((seen.name, "bold"), (" has failed", "bold red"), f" {took} after apply: {why}")


def _result(seen: Seen) -> RenderableType:
    told = seen.status.trainer_status
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("trained", words.numbers(seen.status) or "nothing")
    table.add_row("restarts", f"{seen.status.restarts} of the trainer")
    if told is not None and told.weights_sha256 is not None:
        table.add_row("SHA-256", Text(told.weights_sha256, style="bold"))
        table.add_row("", "of the weights: the same for any number of workers, and for `batchgrowth run`")
    return table
