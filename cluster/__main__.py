"""`python -m cluster`: builds, starts and stops a real Kubernetes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cluster import build as building
from cluster.apiserver import ApiServer
from cluster.errors import ClusterError
from cluster.recipe import GROUPS, Group

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A real Kubernetes, from Go modules.",
)

BY_NAME = {group.name: group for group in GROUPS}


def _group(name: str) -> Group:
    if name not in BY_NAME:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(BY_NAME)}")
    return BY_NAME[name]


def say(text: str) -> None:
    """A line for whoever watches; standard output is for what a script may want to read."""
    typer.echo(text, err=True)


@app.command()
def build(
    groups: Annotated[
        list[Group] | None, typer.Argument(parser=_group, metavar="[GROUP]…", help=", ".join(BY_NAME))
    ] = None,
) -> None:
    """Build the programs that are not built yet: all, or the groups named."""
    for group in groups or GROUPS:
        typer.echo(building.built(group, say))


@app.command()
def apiserver(
    controllers: Annotated[bool, typer.Option("--controllers", help="With kube-controller-manager.")] = False,
) -> None:
    """Run an API server alone until Enter or the end of standard input; print where its kubeconfig is."""
    with ApiServer(controller_manager=controllers, say=say) as server:
        typer.echo(f"export KUBECONFIG={server.kubeconfig}")
        say("an API server for the time being; Enter ends it")
        sys.stdin.readline()


def main() -> None:
    """Runs the command; what goes wrong with the cluster is one message and exit code 1."""
    try:
        app()
    except ClusterError as error:
        say(f"cluster: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
