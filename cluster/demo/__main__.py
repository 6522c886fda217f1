"""`python -m cluster.demo`: installs the chart, applies a job and watches it until it is done."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from batchgrowth.errors import BatchGrowthError
from batchgrowth.manifest import load_manifest
from rich.console import Console
from rich.text import Text

from charts.folders import ROOT
from cluster import release
from cluster.build import built, silence
from cluster.demo.seen import Reader, Seen
from cluster.demo.story import goodbye, story
from cluster.demo.views import view
from cluster.demo.watching import watched
from cluster.errors import ClusterError
from cluster.local import LocalCluster, local_cluster
from cluster.processes import output
from cluster.recipe import APISERVER

EXAMPLE = ROOT / "examples" / "digits.yaml"
INTERRUPTED = 130
WIDTH_OF_A_LOG = 120


@dataclass(frozen=True, slots=True)
class UsersCluster:
    """A cluster that was not started here."""

    kubeconfig: Path


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Manifest = Annotated[Path, typer.Argument(help="The job.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="A cluster of yours, in place of the one of `make cluster`.")]
Namespace = Annotated[str, typer.Option(help="Where the job goes; it is made where it is not there.")]
ValuesFile = Annotated[Path | None, typer.Option("--values", help="Values of the chart: your images, on your cluster.")]


@app.command()
def demo(
    manifest: Manifest = EXAMPLE,
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "demo",
    values: ValuesFile = None,
) -> None:
    """Install the chart, apply the job and watch it until it is done; exit code 1 where it fails, 130 on Ctrl-C."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_A_LOG
    name = load_manifest(manifest).metadata.name
    cluster = _cluster(kubeconfig)
    reader = Reader(cluster.kubeconfig)
    console.print(Text(f"cluster {reader.server}", style="dim"))
    release.install(cluster, values=_values(values), say=lambda text: console.print(Text(text, style="dim")))
    before = reader.look(name, namespace)
    _apply(cluster, manifest, namespace)
    seen = _watched(console, reader, before or _there(reader, name, namespace), known=before is not None)
    console.print(story(seen))
    goodbye(console, seen, cluster.kubeconfig)
    if seen.status.phase != "Succeeded":
        raise typer.Exit(1)


def _cluster(kubeconfig: Path | None) -> LocalCluster | UsersCluster:
    own = local_cluster()
    if kubeconfig is not None and kubeconfig.resolve() != own.kubeconfig.resolve():
        if not kubeconfig.is_file():
            raise ClusterError(f"{kubeconfig}: there is no such kubeconfig")
        return UsersCluster(kubeconfig)
    if not own.is_up():
        raise ClusterError("no cluster is up; `make cluster` starts one, or name your own: make demo KUBECONFIG=…")
    return own


def _values(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        values: Any = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ClusterError(f"{file}: {error}; give a file of values as helm takes it") from error
    if not isinstance(values, dict):
        raise ClusterError(f"{file}: {type(values).__name__}; give a mapping, as helm takes it")
    return values


def _apply(cluster: release.Cluster, manifest: Path, namespace: str) -> None:
    kubectl = (built(APISERVER, silence) / "kubectl", "--kubeconfig", cluster.kubeconfig)
    place = yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    output([*kubectl, "apply", "--filename", "-"], given=place)
    output([*kubectl, "apply", "--namespace", namespace, "--filename", manifest])


def _there(reader: Reader, name: str, namespace: str) -> Seen:
    found = reader.look(name, namespace)
    if found is None:
        raise ClusterError(f"the job {name} was deleted as soon as it was applied")
    return found


def _watched(console: Console, reader: Reader, first: Seen, *, known: bool) -> Seen:
    if known:
        now = "is done, and is not trained again" if first.is_over else "is there already, and is watched from here on"
        console.print(Text(f"the job {first.name} of the namespace {first.namespace} {now}\n", style="yellow"))
    if first.is_over:
        return first
    try:
        return watched(reader, first, view(console))
    except KeyboardInterrupt:
        console.print(
            Text(f"\nThe job {first.name} goes on without this view. `make demo` comes back to it;", style="yellow")
        )
        console.print(f"  kubectl delete bgj {first.name} --namespace {first.namespace}   ends it")
        raise typer.Exit(INTERRUPTED) from None


def main() -> None:
    """Runs the command; what goes wrong is one message and exit code 1."""
    try:
        app()
    except (ClusterError, BatchGrowthError, ConnectionError) as error:
        typer.echo(f"demo: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
