"""`python -m cluster`: builds, starts and stops a real Kubernetes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from cluster import build as building
from cluster import debian, folders, images
from cluster.apiserver import ApiServer
from cluster.errors import HarnessError
from cluster.local import IN_THE_NODE, NODE_PROCESS, ON_THE_MACHINE, local_cluster
from cluster.locks import alone
from cluster.prometheus import Prometheus
from cluster.recipe import ALL, GROUPS, Group
from cluster.starting import start
from cluster.stopping import stop
from cluster.users import KUBECONFIG, users_cluster

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A real Kubernetes, from Go modules.",
)

BY_NAME = {group.name: group for group in ALL}


def _group(name: str) -> Group:
    if name not in BY_NAME:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(BY_NAME)}")
    return BY_NAME[name]


def _target(name: str) -> str:
    if name not in images.TARGETS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(images.TARGETS)}")
    return name


Groups = Annotated[list[Group] | None, typer.Argument(parser=_group, metavar="[GROUP]…", help=", ".join(BY_NAME))]
Targets = Annotated[
    list[str] | None, typer.Argument(parser=_target, metavar="[TARGET]…", help=", ".join(images.TARGETS))
]
FakeNodes = Annotated[int, typer.Option(min=0, max=1000, help="How many nodes kwok plays.")]
Gpus = Annotated[int, typer.Option(min=0, max=64, help="GPUs of each of them.")]


def say(text: str) -> None:
    """A line for whoever watches; standard output is for what a script may want to read."""
    typer.echo(text, err=True)


@app.command()
def build(groups: Groups = None) -> None:
    """Build the programs that are not built yet: those of a cluster, or the groups named."""
    for group in groups or GROUPS:
        typer.echo(building.built(group, say))


@app.command()
def packages() -> None:
    """Install the Debian packages that a node and the building of images need (root); the only command that does."""
    log = folders.cache() / "packages.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    installed = debian.install(log)
    say(f"installed {' '.join(installed)}" if installed else "every package is there")


@app.command()
def apiserver(
    controllers: Annotated[bool, typer.Option("--controllers", help="With kube-controller-manager.")] = False,
) -> None:
    """Run an API server alone until Enter or the end of standard input; print where its kubeconfig is."""
    with ApiServer(controller_manager=controllers, say=say) as server:
        typer.echo(f"export KUBECONFIG={server.kubeconfig}")
        say("an API server for the time being; Enter ends it")
        sys.stdin.readline()


@app.command()
def prometheus(port: Annotated[int, typer.Option(min=1, max=65535, help="Where it listens.")] = 9091) -> None:
    """Run a Prometheus that scrapes the operator and the trainers of the cluster that is up, until Enter."""
    if not local_cluster().is_up():
        raise HarnessError("no cluster is up; `python -m cluster up` starts one")
    with Prometheus(local_cluster().kubeconfig, port=port, say=say) as server:
        typer.echo(server.url)
        say("a Prometheus for the time being; Enter ends it")
        sys.stdin.readline()


@app.command()
def image(targets: Targets = None) -> None:
    """Build the project's images that are not built yet (root) and print their archives in the order of import."""
    for target in targets or images.TARGETS:
        with alone("images"):
            archives = images.archives_of(target, say)
        for archive in archives:
            typer.echo(archive)


@app.command()
def up(fake_nodes: FakeNodes = 12, gpus: Gpus = 8) -> None:
    """Bring a single-node Kubernetes up (root), with fake nodes that have GPUs; print where its kubeconfig is."""
    if _users():
        return
    with alone("cluster"):
        start(local_cluster(), num_fake=fake_nodes, gpus=gpus, say=say)
    typer.echo(f"export KUBECONFIG={local_cluster().kubeconfig}")


@app.command()
def load(targets: Targets = None) -> None:
    """Give the cluster the project's images of this working tree, which are built if they are not yet."""
    if not local_cluster().is_up():
        raise HarnessError("no cluster is up; `python -m cluster up` starts one")
    for target in targets or images.TARGETS:
        with alone("images"):
            loaded = images.load(local_cluster(), images.archives_of(target, say))
        say(f"{images.name_of(target)}: {'loaded' if loaded else 'there already'}")


@app.command()
def status() -> None:
    """Say which servers run, and what the nodes say; exit code 1 where the cluster is not up."""
    if _users():
        return
    cluster = local_cluster()
    for name in (*ON_THE_MACHINE, NODE_PROCESS, *IN_THE_NODE):
        process = cluster.process(name)
        typer.echo(f"{name:24} {f'process {process.pid}' if process else 'not running'}")
    if not cluster.is_up():
        raise typer.Exit(1)
    typer.echo(f"export KUBECONFIG={cluster.kubeconfig}")
    typer.echo(cluster.kubectl("get", "nodes").stdout, nl=False)


@app.command()
def down() -> None:
    """Take the cluster down (root) and leave nothing but programs and images in the cache; twice is once."""
    if os.environ.get(KUBECONFIG):
        say(f"{KUBECONFIG} is set: that cluster was not started here and stays")
    with alone("cluster"):
        stop(local_cluster())


def _users() -> bool:
    """Whether BATCHGROWTH_KUBECONFIG names a cluster; if so, prints where its kubeconfig is."""
    cluster = users_cluster()
    if cluster is None:
        return False
    say(f"{KUBECONFIG} is set: that cluster is used, and none is started")
    typer.echo(f"export KUBECONFIG={cluster.kubeconfig}")
    return True


def main() -> None:
    """Runs the command; what goes wrong with the cluster is one message and exit code 1."""
    try:
        app()
    except HarnessError as error:
        say(f"cluster: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
