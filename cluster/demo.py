"""`python -m cluster.demo`: installs the chart, applies a job and prints `kubectl get bgj` until the job ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from typing import Annotated, Any

import typer
import yaml
from batchgrowth.errors import BatchGrowthError, duration
from batchgrowth.manifest.crd import COLUMNS
from batchgrowth.manifest.reading import load_manifest

from charts.folders import ROOT
from cluster import release
from cluster.errors import HarnessError
from cluster.local import LocalCluster, local_cluster
from cluster.users import UsersCluster, read_values, users_cluster

EXAMPLE = ROOT / "examples" / "digits.yaml"
POLL_SECONDS = 0.5
INTERRUPTED = 130
FINAL_PHASES = {"Succeeded", "Failed", "Rejected"}

Cluster = LocalCluster | UsersCluster
Object = dict[str, Any]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Manifest = Annotated[Path, typer.Argument(help="The job.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="Your own cluster instead of the one of `make cluster`.")]
Namespace = Annotated[str, typer.Option(help="The job's namespace; created if it does not exist.")]
ValuesFile = Annotated[Path | None, typer.Option("--values", help="Chart values: your images, on your own cluster.")]


@app.command()
def demo(
    manifest: Manifest = EXAMPLE,
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "demo",
    values: ValuesFile = None,
) -> None:
    """Install the chart, apply the job and watch it: exit 0 if it succeeds, 1 if it fails, 130 on Ctrl-C."""
    name = load_manifest(manifest).metadata.name
    cluster = _cluster(kubeconfig)
    release.install(cluster, values=read_values(values), say=typer.echo)
    place = yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    _kubectl(cluster, "apply", "--filename", "-", given=place)
    typer.echo(_kubectl(cluster, "apply", "--namespace", namespace, "--filename", str(manifest)))
    delete = f"kubectl --kubeconfig {cluster.kubeconfig} delete bgj {name} --namespace {namespace}"
    job: Object = {}
    try:
        for job in changes(cluster, name, namespace):
            typer.echo("\n  ".join([_line(_cells(job)), *_why_stuck(job)]))
    except KeyboardInterrupt:
        typer.echo(f"\n{name} keeps training; `make demo` watches it again, and this deletes it:\n  {delete}")
        raise typer.Exit(INTERRUPTED) from None
    print_result(job)
    typer.echo(f"`make demo` prints this again; to train again, delete the job first:\n  {delete}")
    if job["status"]["phase"] != "Succeeded":
        raise typer.Exit(1)


def _cluster(kubeconfig: Path | None) -> Cluster:
    own = local_cluster()
    if kubeconfig is not None and kubeconfig.resolve() != own.kubeconfig.resolve():
        if not kubeconfig.is_file():
            raise HarnessError(f"{kubeconfig}: no such file; name a kubeconfig")
        return UsersCluster(kubeconfig)
    cluster = users_cluster()
    if cluster is None and not own.is_up():
        raise HarnessError("no cluster is up; `make cluster` starts one, or name your own: make demo KUBECONFIG=…")
    return cluster or own


def _kubectl(cluster: Cluster, *arguments: str, given: str | None = None) -> str:
    done = cluster.kubectl(*arguments, given=given)
    if done.returncode:
        raise HarnessError(done.stderr.strip())
    return done.stdout.strip()


def changes(cluster: Cluster, name: str, namespace: str) -> Iterator[Object]:
    """Yield the job whenever its phase, batch, workers, epoch or trouble changes, until it ends.

    Retries while the API server does not answer: training continues without it.
    Raises HarnessError if the job is deleted.
    """
    typer.echo(_line([heading.upper() for heading, *_ in COLUMNS]))
    last: list[str] = []
    while True:
        done = cluster.kubectl("get", "bgj", name, "--namespace", namespace, "--output", "json")
        if "NotFound" in done.stderr:
            raise HarnessError(f"the job {name} was deleted; `make demo` applies it again")
        if done.returncode:
            typer.echo(f"{done.stderr.strip().splitlines()[-1]}; retrying")
        else:
            job = json.loads(done.stdout)
            phase, batch, workers, epoch = _cells(job)[:4]
            now = [phase, batch, workers, epoch.partition(".")[0], *_why_stuck(job)]
            if now != last and phase:
                yield job
            last = now
            if phase in FINAL_PHASES:
                return
        sleep(POLL_SECONDS)


def _why_stuck(job: Object) -> list[str]:
    """Return the messages of the conditions that explain why the job is refused or stalled."""
    stuck = {("Accepted", "False"), ("Stalled", "True")}
    return [c["message"] for c in _conditions(job) if (c["type"], c["status"]) in stuck]


def _cells(job: Object) -> list[str]:
    """Return the values of the printed columns; an absent one is empty, and the age is in seconds, minutes or hours."""
    cells = []
    for *_, kind, path, _ in COLUMNS:
        value: Any = job
        for key in path.removeprefix(".").split("."):
            value = (value or {}).get(key)
        cells.append("" if value is None else duration(_seconds_since(value)) if kind == "date" else str(value))
    return cells


def _line(cells: list[str]) -> str:
    return "".join(f"{cell:12}" for cell in cells).rstrip()


def print_result(job: Object) -> None:
    """Print why the job failed, or its stages and the SHA-256 of its weights; a refusal is printed already."""
    status = job["status"]
    if status["phase"] != "Succeeded":
        for message in [c["message"] for c in _conditions(job) if (c["type"], c["status"]) == ("Succeeded", "False")]:
            typer.echo(message)
        return
    for stage in status["history"]:
        pause = f", longest pause {stage['pauseSeconds']} s" if "pauseSeconds" in stage else ""
        workers = f"{stage['workers']} worker{'' if stage['workers'] == 1 else 's'}"
        typer.echo(f"stage {stage['index'] + 1}: batch {stage['batchSize']:,}, {workers}{pause}")
    typer.echo(f"SHA-256 of the weights: {status['trainerStatus']['weightsSha256']}")


def _conditions(job: Object) -> list[Object]:
    return list((job.get("status") or {}).get("conditions", ()))


def _seconds_since(stamp: str) -> float:
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds())


def main() -> None:
    """Run the command; report an error as one message and exit code 1."""
    try:
        app()
    except (HarnessError, BatchGrowthError) as error:
        typer.echo(f"demo: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
