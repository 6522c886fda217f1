"""The operator's process: builds the parts and runs them until a signal stops it."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from batchgrowth.contract.logs import LogFormat, LogLevel, configure_logs
from batchgrowth.spec import KIND
from prometheus_client import start_http_server

from batchgrowth_operator.api.apply import Writer
from batchgrowth_operator.api.cache import Store, Sweep
from batchgrowth_operator.api.client import Api, connect
from batchgrowth_operator.api.events import EventPoster
from batchgrowth_operator.api.leader import Leadership, hold
from batchgrowth_operator.api.observe import Observer
from batchgrowth_operator.loop import watch
from batchgrowth_operator.loop.framework import RefusalFilter, Watches, kopf, new_watches, refusal_message
from batchgrowth_operator.loop.metrics import OperatorMetrics
from batchgrowth_operator.loop.queue import MOST_CONCURRENT, Pass, Passes, ProgressRate, passes_of
from batchgrowth_operator.seen.clock import backoff_seconds
from batchgrowth_operator.settings import Defaults, LeaseLock, Settings

HEALTHY_AFTER_SECONDS = 120.0
"""Time for which the watches must last before the back-off starts over."""
SIGNAL_HANDLERS_AFTER_SECONDS = 0.2
"""Delay after which our signal handlers replace those that kopf sets while it starts."""
OTHER_THREADS = 4
"""Threads for requests outside of passes, such as those of the sweep."""
EVERYWHERE = "0.0.0.0"  # noqa: S104  (a pod's own address is not known before it runs)
CHATTY = {"aiohttp.access": logging.WARNING, "asyncio": logging.CRITICAL, "kopf.objects": logging.WARNING}
"""Loggers with a line per health probe or per event of an object, and their least level unless debugging."""

log = logging.getLogger(__name__)


def run(settings: Settings) -> None:
    """Runs the operator; returns after SIGTERM or SIGINT. If watching fails, it restarts with a back-off."""
    metrics = OperatorMetrics()
    api = connect(settings.kubeconfig, metrics.request)
    if settings.metrics_port:
        start_http_server(settings.metrics_port, EVERYWHERE, metrics.registry)
    _configure_logs(settings.log_level, settings.log_format)
    failures = 0
    while True:
        began = time.monotonic()
        try:
            asyncio.run(_watch(settings, api, metrics))
            return
        except Exception as error:
            failures = 1 if time.monotonic() - began > HEALTHY_AFTER_SECONDS else failures + 1
            wait, refusal = backoff_seconds(failures), refusal_message(error)
            if refusal is None:
                log.exception("watching failed; retrying in %g s", wait)
            else:
                log.error("%s; retrying in %g s", refusal, wait)
        time.sleep(wait)


def _configure_logs(level: LogLevel, log_format: LogFormat) -> None:
    configure_logs(level, log_format)
    for name, least in CHATTY.items():
        logging.getLogger(name).setLevel(logging.NOTSET if level is LogLevel.debug else least)
    for handler in logging.getLogger().handlers:
        handler.addFilter(RefusalFilter())


async def _watch(settings: Settings, api: Api, metrics: OperatorMetrics) -> None:
    """Watches until a signal arrives, from an empty store, since the last one may be outdated.

    Raises what kopf cannot recover from: a watched kind was removed, or the API server refuses for long.
    """
    store = Store()
    metrics.forget_all()
    leadership = Leadership(needs_lease=settings.lease is not None)
    poster = EventPoster(api, lambda: leadership.seconds_left)
    writer = Writer(api, store, poster, poster.seconds_left)
    defaults = Defaults(
        image=settings.image,
        pods=settings.pods,
        network=settings.network,
        checkpoint_size=settings.checkpoint_size,
    )
    observer, rate = Observer(api, store), ProgressRate(defaults)
    make_pass = passes_of(observer, writer, rate, metrics, settings.operator_class)
    stop = asyncio.Event()
    # asyncio's own has a thread per processor and four more, so most passes would wait for others' writes.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MOST_CONCURRENT + OTHER_THREADS, "requests"))

    watches = new_watches()

    def begin() -> Passes:
        passes = _begin(make_pass, api, store, settings.lease, leadership, stop, watches)
        sweeping = Sweep(api, store, settings.namespaces).run(passes.wake)
        _add_task(passes, sweeping, "sweep")
        return passes

    poster.start()
    try:
        await kopf.operator(
            registry=watch.registry_of(observer, rate, begin, api.access),
            settings=watch.settings(namespaced=bool(settings.namespaces)),
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
        log.warning("watching failed during shutdown", exc_info=True)
    finally:
        poster.stop()


def _begin(
    make_pass: Pass,
    api: Api,
    store: Store,
    lease: LeaseLock | None,
    leadership: Leadership,
    stop: asyncio.Event,
    watches: Watches,
) -> Passes:
    """The passes. Our signal handlers set `stop`, because kopf forgets a signal if watching fails during shutdown."""
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.call_later(SIGNAL_HANDLERS_AFTER_SECONDS, loop.add_signal_handler, name, stop.set)
    passes, leads = Passes(make_pass, waits=True), asyncio.Event()
    if lease is None:
        leads.set()
    else:
        _add_task(passes, _lead(api, lease, leadership, leads.set), "lease")
    _add_task(passes, _begin_when_ready(passes, store, watches, leads), "start")
    return passes


def _add_task(passes: Passes, work: Coroutine[Any, Any, None], name: str) -> None:
    """Runs this beside the passes. If it fails, the process ends, to be replaced: it would only seem to work."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_end_if_it_failed)
    passes.add_task(task)


def _end_if_it_failed(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.critical("the task %s failed, so this process ends", task.get_name(), exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)


async def _begin_when_ready(passes: Passes, store: Store, watches: Watches, leads: asyncio.Event) -> None:
    """Starts the passes once the store has every object, so that the first pass of a job sees all its children."""
    await watches.until_indexed()
    await leads.wait()
    passes.begin([key for key, _ in store.versions(KIND)])


async def _lead(api: Api, lease: LeaseLock, leadership: Leadership, begin: Callable[[], None]) -> None:
    """Works while this process holds the lease, then ends the process; its replacement waits for the lease again."""
    await hold(api, lease, leadership, begin)
    os.kill(os.getpid(), signal.SIGTERM)
