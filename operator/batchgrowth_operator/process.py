"""The operator's process: builds the parts and runs them until a signal comes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable

from prometheus_client import start_http_server

from batchgrowth_operator.decide.defaults import Defaults
from batchgrowth_operator.server.api import Api, connect
from batchgrowth_operator.server.apply import Writer
from batchgrowth_operator.server.lease import hold
from batchgrowth_operator.server.observe import Observer
from batchgrowth_operator.server.settings import Place, Settings
from batchgrowth_operator.server.store import Store
from batchgrowth_operator.server.sweep import Sweep
from batchgrowth_operator.shell import handlers
from batchgrowth_operator.shell.framework import kopf
from batchgrowth_operator.shell.passes import Pass, Passes, passes_of
from batchgrowth_operator.shell.refusals import ToldOnce, words_of
from batchgrowth_operator.shell.telemetry import Telemetry

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
GOOD_WHILE_SECONDS = 120.0
"""Watches that lasted so long were not at fault from the beginning."""
HEARD_AFTER_SECONDS = 0.2
"""kopf sets handlers of signals of its own while it starts; ours take their place."""
EVERYWHERE = "0.0.0.0"  # noqa: S104  (a pod's own address is not known before it runs)

log = logging.getLogger(__name__)


def run(settings: Settings) -> None:
    """Runs the operator; returns after SIGTERM or SIGINT."""
    telemetry = Telemetry()
    api = connect(settings.kubeconfig, telemetry.request)
    if settings.metrics_port:
        start_http_server(settings.metrics_port, EVERYWHERE, telemetry.registry)
    _log()
    wait = FIRST_WAIT_SECONDS
    while True:
        began = time.monotonic()
        try:
            asyncio.run(_watch(settings, api, telemetry))
        except Exception as error:
            words = words_of(error)
            if words is None:
                log.exception("watching has failed; it begins anew in %g s", wait)
            else:
                log.error("%s; watching begins anew in %g s", words, wait)
        else:
            return
        time.sleep(wait)
        wait = (
            FIRST_WAIT_SECONDS if time.monotonic() - began > GOOD_WHILE_SECONDS else min(2 * wait, LONGEST_WAIT_SECONDS)
        )


def _log() -> None:
    kopf.configure()
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it has a line for every event of every object
    for handler in logging.getLogger().handlers:
        handler.addFilter(ToldOnce())


async def _watch(settings: Settings, api: Api, telemetry: Telemetry) -> None:
    """Watches until a signal comes. Raises what kopf cannot go on after: a kind that went away while it was watched, an
    API server that refuses for long. What was known by then may be wrong, so nothing of it is kept.
    """
    store = Store()
    telemetry.forget_all()
    make_pass = passes_of(Observer(api, store), Writer(api, store), Defaults(image=settings.image), telemetry)
    stop = asyncio.Event()

    def begin() -> Passes:
        passes = _begin(make_pass, api, settings.lease, stop)
        sweeping = Sweep(api, store, settings.namespaces).for_ever(passes.wake)
        passes.accompany(asyncio.create_task(sweeping, name="sweep"))
        return passes

    try:
        await kopf.operator(
            registry=handlers.registry_of(store, begin, api.access),
            settings=handlers.settings(namespaced=bool(settings.namespaces)),
            memo=kopf.Memo(),
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            standalone=True,
            stop_flag=stop,
            liveness_endpoint=f"http://{EVERYWHERE}:{settings.health_port}/healthz" if settings.health_port else None,
        )
    except Exception:
        if not stop.is_set():
            raise
        log.warning("watching failed while it was stopped", exc_info=True)


def _begin(make_pass: Pass, api: Api, lease: Place | None, stop: asyncio.Event) -> Passes:
    """The passes. Soon signals set `stop`: kopf forgets that one came if watching fails while it stops."""
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.call_later(HEARD_AFTER_SECONDS, loop.add_signal_handler, name, stop.set)
    passes = Passes(make_pass, waits=lease is not None)
    if lease is not None:
        passes.accompany(asyncio.create_task(_lead(api, lease, passes.begin), name="lease"))
    return passes


async def _lead(api: Api, lease: Place, begin: Callable[[], None]) -> None:
    """Works as long as the lease lasts; without it this process ends, and its successor waits anew."""
    await hold(api, lease, begin)
    os.kill(os.getpid(), signal.SIGTERM)
