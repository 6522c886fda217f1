"""`python -m bench.first_update`: from `kubectl apply` of the example job to its first update, in real pods.

It needs an idle cluster of `make cluster` with the images loaded. Each round applies examples/digits.yaml in a new
namespace and watches its trainer's progress report. The pauses at milestones are the trainer's own figures, from the
job's status.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from batchgrowth import names
from batchgrowth.contract.progress import Progress

from bench.tables import cells, show, spread
from cluster import release
from cluster.local import LocalCluster, local_cluster

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.yaml"
JOB = "digits"
PATIENCE_SECONDS = 300
POLL_SECONDS = 0.1


def main(rounds: Annotated[int, typer.Option(min=1, max=100, help="How many times the job is applied.")] = 5) -> None:
    """Measure the time from apply to the first update and to the end, and the pauses at the milestones."""
    cluster = local_cluster()
    if not cluster.is_up():
        raise typer.BadParameter("no cluster is up; `make cluster` starts one")
    release.install(cluster)
    firsts = []
    wholes = []
    pauses = []
    for _ in range(rounds):
        first, whole, resizes = one_round(cluster)
        firsts.append(first)
        wholes.append(whole)
        pauses += resizes
    rows = [
        ("apply → first update", *cells(spread(firsts), 2)),
        ("apply → Succeeded", *cells(spread(wholes), 2)),
        ("pause at a resize", *cells(spread(pauses), 2)),
    ]
    show(f"examples/digits.yaml in real pods, rounds: {rounds}", ("seconds", "min", "median", "max"), rows)


def one_round(cluster: LocalCluster) -> tuple[float, float, list[float]]:
    """Return the seconds from `kubectl apply` to the first update and to the end, and the pauses."""
    namespace = f"first-{secrets.token_hex(3)}"

    def kubectl(*arguments: str | Path) -> str:
        done = cluster.kubectl("--namespace", namespace, *arguments)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def updates() -> int:
        listed = json.loads(kubectl("get", "configmaps", "--output=json"))["items"]
        texts = [(each.get("data") or {}).get(names.PROGRESS_KEY) for each in listed]
        return max((Progress.from_json(text).update for text in texts if text), default=0)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(kubectl("get", "bgj", JOB, "--output=json"))
        return found.get("status") or {}

    kubectl("create", "namespace", namespace)
    began = time.monotonic()
    kubectl("apply", "--filename", EXAMPLE)
    _wait(lambda: updates() > 0)
    first = time.monotonic() - began
    _wait(lambda: status().get("phase") == "Succeeded")
    whole = time.monotonic() - began
    pauses = [float(record["pauseSeconds"]) for record in status()["history"] if "pauseSeconds" in record]
    kubectl("delete", "namespace", namespace)
    return first, whole, pauses


def _wait(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE_SECONDS} s; look at the pods")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    typer.run(main)
