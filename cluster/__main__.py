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
from cluster.network import BY_FAMILY, Network
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
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(BY_NAME)}")
    return BY_NAME[name]


def _target(name: str) -> str:
    if name not in images.TARGETS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(images.TARGETS)}")
    return name


def _network(family: str) -> Network:
    if family not in BY_FAMILY:
        raise typer.BadParameter(f"{family!r} is not one of {', '.join(BY_FAMILY)}")
    return BY_FAMILY[family]


Groups = Annotated[list[Group] | None, typer.Argument(parser=_group, metavar="[GROUP]…", help=", ".join(BY_NAME))]
Targets = Annotated[
    list[str] | None, typer.Argument(parser=_target, metavar="[TARGET]…", help=", ".join(images.TARGETS))
]
FakeNodes = Annotated[int, typer.Option(min=0, max=1000, help="Number of nodes that kwok simulates.")]
Family = Annotated[
    Network | None,
    typer.Option(parser=_network, metavar="|".join(BY_FAMILY), help="Family of all addresses.", show_default="IPv4"),
]
Gpus = Annotated[int, typer.Option(min=0, max=64, help="GPUs of each fake node.")]


def say(text: str) -> None:
    """Print progress on stderr; stdout is for the output that scripts parse."""
    typer.echo(text, err=True)


@app.command()
def build(groups: Groups = None) -> None:
    """Build the programs of a cluster, or of the groups named, unless they are cached."""
    for group in groups or GROUPS:
        typer.echo(building.built(group, say))


@app.command()
def packages() -> None:
    """Install the Debian packages that a node and image builds need (root); no other command does."""
    if os.environ.get(KUBECONFIG):
        say(f"{KUBECONFIG} is set: that cluster needs no packages of this machine")
        return
    log = folders.cache() / "packages.log"
    with alone("packages"):  # apt-get fails beside another apt-get
        installed = debian.install(log)
    say(f"installed {' '.join(installed)}" if installed else "every package is installed")


@app.command()
def apiserver(
    controllers: Annotated[bool, typer.Option("--controllers", help="With kube-controller-manager.")] = False,
) -> None:
    """Run a bare API server until Enter or end of input; print the path of its kubeconfig."""
    with ApiServer(controller_manager=controllers, say=say) as server:
        typer.echo(f"export KUBECONFIG={server.kubeconfig}")
        say("the API server is running; press Enter to stop it")
        sys.stdin.readline()


@app.command()
def prometheus(port: Annotated[int, typer.Option(min=1, max=65535, help="The port it listens on.")] = 9091) -> None:
    """Run a Prometheus that scrapes the operator and the trainers of the cluster that is up, until Enter."""
    if not local_cluster().is_up():
        raise HarnessError("no cluster is up; `python -m cluster up` starts one")
    with Prometheus(local_cluster().kubeconfig, port=port, say=say) as server:
        typer.echo(server.url)
        say("Prometheus is running; press Enter to stop it")
        sys.stdin.readline()


@app.command()
def image(targets: Targets = None) -> None:
    """Build the project's images unless they are cached (root); print their archives in import order."""
    for target in targets or images.TARGETS:
        with alone("images"):
            archives = images.archives_of(target, say)
        for archive in archives:
            typer.echo(archive)


@app.command()
def up(fake_nodes: FakeNodes = 12, gpus: Gpus = 8, family: Family = None) -> None:
    """Start a single-node Kubernetes (root) with fake GPU nodes; print the path of its kubeconfig."""
    if _users():
        return
    with alone("cluster"):
        start(local_cluster(), num_fake=fake_nodes, gpus=gpus, say=say, addresses=family)
    typer.echo(f"export KUBECONFIG={local_cluster().kubeconfig}")


@app.command()
def load(targets: Targets = None) -> None:
    """Load the images of this working tree into the cluster; build them first unless they are cached."""
    if not local_cluster().is_up():
        raise HarnessError("no cluster is up; `python -m cluster up` starts one")
    for target in targets or images.TARGETS:
        with alone("images"):
            loaded = images.load(local_cluster(), images.archives_of(target, say))
        say(f"{images.name_of(target)}: {'loaded' if loaded else 'already loaded'}")


@app.command()
def status() -> None:
    """Print the cluster's servers and nodes; exit code 1 if it is not up."""
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
    """Take the cluster down (root); only cached programs and images remain. Does nothing if it is not up."""
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
    """Run the command; report a HarnessError as one message and exit code 1."""
    try:
        app()
    except HarnessError as error:
        say(f"cluster: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
