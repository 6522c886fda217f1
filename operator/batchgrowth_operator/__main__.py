"""`batchgrowth operator`: builds the parts and runs them until a signal comes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

import kopf
from prometheus_client import start_http_server

from batchgrowth_operator import handlers
from batchgrowth_operator.api import Api, connect
from batchgrowth_operator.apply import Writer
from batchgrowth_operator.commands import operator
from batchgrowth_operator.defaults import Defaults
from batchgrowth_operator.lease import hold
from batchgrowth_operator.observe import Observer
from batchgrowth_operator.passes import Pass, Passes, passes_of
from batchgrowth_operator.settings import Place, Settings
from batchgrowth_operator.store import Store
from batchgrowth_operator.telemetry import Telemetry

EVERYWHERE = "0.0.0.0"  # noqa: S104  (a pod's own address is not known before it runs)


def run(settings: Settings) -> None:
    """Runs the operator; returns after SIGTERM or SIGINT."""
    store, telemetry = Store(), Telemetry()
    api = connect(settings.kubeconfig, telemetry.request)
    make_pass = passes_of(Observer(api, store), Writer(api, store), Defaults(image=settings.image), telemetry)
    if settings.metrics_port:
        start_http_server(settings.metrics_port, EVERYWHERE, telemetry.registry)
    kopf.configure()
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it has a line for every event of every object
    asyncio.run(
        kopf.operator(
            registry=handlers.registry_of(store, lambda: _begin(make_pass, api, settings.lease), api.access),
            settings=handlers.settings(),
            memo=kopf.Memo(),
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            standalone=True,
            liveness_endpoint=f"http://{EVERYWHERE}:{settings.health_port}/healthz" if settings.health_port else None,
        )
    )


def _begin(make_pass: Pass, api: Api, lease: Place | None) -> Passes:
    passes = Passes(make_pass, waits=lease is not None)
    if lease is not None:
        passes.lead(asyncio.create_task(_lead(api, lease, passes.begin), name="lease"))
    return passes


async def _lead(api: Api, lease: Place, begin: Callable[[], None]) -> None:
    """Works as long as the lease lasts; without it this process ends, and its successor waits anew."""
    await hold(api, lease, begin)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    import typer

    typer.run(operator)
