"""The command that this package adds to `batchgrowth`."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from batchgrowth_operator.server.settings import Place, Settings


def operator(
    image: Annotated[
        str, typer.Option(envvar="BATCHGROWTH_IMAGE", help="The image of jobs that name none.", show_default=False)
    ],
    kubeconfig: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Run outside the cluster with this access.")
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="Serve this namespace only; may be given several times.")
    ] = None,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Metrics for Prometheus; 0 for none.")] = 0,
    health_port: Annotated[int, typer.Option(min=0, max=65535, help="An answer for probes; 0 for none.")] = 0,
    lease: Annotated[
        str | None, typer.Option(help="Several operators: the name of the Lease that says which of them works.")
    ] = None,
    lease_namespace: Annotated[
        str, typer.Option(envvar="BATCHGROWTH_NAMESPACE", help="The namespace of that Lease.")
    ] = "default",
    identity: Annotated[
        str, typer.Option(envvar="BATCHGROWTH_POD", help="This operator's name in that Lease.", show_default=False)
    ] = "",
) -> None:
    """Run the operator: make the cluster match the plans of its jobs."""
    from batchgrowth_operator.process import run

    run(
        Settings(
            image=image,
            kubeconfig=kubeconfig,
            namespaces=tuple(namespace or ()),
            metrics_port=metrics_port,
            health_port=health_port,
            lease=Place(lease_namespace, lease, identity or f"{socket.gethostname()}-{os.getpid()}") if lease else None,
        )
    )
