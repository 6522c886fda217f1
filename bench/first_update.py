"""`python -m bench.first_update`: from `kubectl apply` of the example job to its first update, in real pods.

It needs an idle cluster of `make cluster` with the images loaded. Each round applies examples/digits.yaml in a new
namespace and watches its trainer's progress report. The pauses at milestones are the trainer's own figures, from the
job's status.
"""

from __future__ import annotations

import json
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from batchgrowth import names
from batchgrowth.contract.progress import Progress
from rich.console import Console
from rich.table import Table

from cluster import release
from cluster.local import LocalCluster, local_cluster

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.yaml"
NAME, PATIENCE_SECONDS, LOOK_SECONDS = "digits", 300, 0.1


def kubectl(cluster: LocalCluster, *arguments: str | Path, given: str | None = None) -> str:
    """The output of kubectl. Raises RuntimeError if it fails."""
    done = cluster.kubectl(*arguments, given=given)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def until(ready: Callable[[], Any]) -> float:
    """The seconds until `ready()` is true. Raises TimeoutError after PATIENCE_SECONDS."""
    began = time.monotonic()
    while not ready():
        if time.monotonic() - began > PATIENCE_SECONDS:
            raise TimeoutError(f"not within {PATIENCE_SECONDS} s; look at the pods")
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - began


def one_round(cluster: LocalCluster) -> tuple[float, float, list[float]]:
    """Seconds from the start of `kubectl apply` to the first update and to the end, and the pauses."""
    own = ("--namespace", f"first-{secrets.token_hex(3)}")
    kubectl(cluster, "create", "namespace", own[1])

    def updates() -> int:
        listed = json.loads(kubectl(cluster, *own, "get", "configmaps", "--output=json"))["items"]
        texts = [(c.get("data") or {}).get(names.PROGRESS_KEY) for c in listed]
        return max((Progress.from_json(text).update for text in texts if text), default=0)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(kubectl(cluster, *own, "get", "bgj", NAME, "--output=json"))
        return found.get("status") or {}

    began = time.monotonic()
    kubectl(cluster, *own, "apply", "--filename", EXAMPLE)
    until(updates)
    first = time.monotonic() - began
    until(lambda: status().get("phase") == "Succeeded")
    whole = time.monotonic() - began
    pauses = [float(record["pauseSeconds"]) for record in status()["history"] if "pauseSeconds" in record]
    kubectl(cluster, "delete", "namespace", own[1])
    return first, whole, pauses


def bench(rounds: Annotated[int, typer.Option(min=1, max=100, help="How many times the job is applied.")] = 5) -> None:
    """Measure the time from apply to the first update and to the end, and the pauses at the milestones."""
    cluster = local_cluster()
    if not cluster.is_up():
        raise typer.BadParameter("no cluster is up; `make cluster` starts one")
    release.install(cluster)
    measured = [one_round(cluster) for _ in range(rounds)]
    table = Table("seconds", "min", "median", "max", title=f"examples/digits.yaml in real pods, {rounds} rounds")
    firsts, wholes, pauses = zip(*measured, strict=True)
    for title, seconds in (
        ("apply → first update", firsts),
        ("apply → Succeeded", wholes),
        ("pause at a resize", [pause for each in pauses for pause in each]),
    ):
        table.add_row(title, *_spread(seconds))
    Console().print(table)


def _spread(seconds: Sequence[float]) -> tuple[str, str, str]:
    return f"{min(seconds):.2f}", f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}"


if __name__ == "__main__":
    typer.run(bench)
