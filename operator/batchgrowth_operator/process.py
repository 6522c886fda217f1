"""The operator's process: builds the parts and runs them until a signal stops it."""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from batchgrowth.contract.logs import LogFormat, LogLevel, configure_logs
from batchgrowth.errors import PortError
from batchgrowth.spec import KIND
from prometheus_client import start_http_server

from batchgrowth_operator.api.apply import Writer
from batchgrowth_operator.api.cache import Store, Sweep
from batchgrowth_operator.api.client import Api, connect
from batchgrowth_operator.api.events import EventPoster
from batchgrowth_operator.api.leader import Leadership, hold
from batchgrowth_operator.api.observe import Observer
from batchgrowth_operator.loop import watch
from batchgrowth_operator.loop.kopf_patches import RefusalFilter, kopf, new_watches, refusal_message
from batchgrowth_operator.loop.metrics import OperatorMetrics
from batchgrowth_operator.loop.one_pass import Reconciler
from batchgrowth_operator.loop.queue import MOST_CONCURRENT, Passes, ProgressRate
from batchgrowth_operator.seen.observed import backoff_seconds
from batchgrowth_operator.settings import Settings

HEALTHY_AFTER_SECONDS = 120.0
"""Time for which the watches must last before the back-off starts over."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals that stop the operator."""
SIGNAL_HANDLERS_AFTER_SECONDS = 0.2
"""Delay after which our signal handlers replace those that kopf sets while it starts."""
OTHER_THREADS = 4
"""Threads for requests outside of passes, such as those of the sweep."""
EVERY_IPV4 = "0.0.0.0"  # noqa: S104
EVERYWHERE = "::" if socket.has_dualstack_ipv6() else EVERY_IPV4
CHATTY = {"aiohttp.access": logging.WARNING, "asyncio": logging.CRITICAL, "kopf.objects": logging.WARNING}
"""Loggers that write too much, such as a line per health probe, and their least level unless debugging."""

log = logging.getLogger(__name__)


def run(settings: Settings) -> None:
    """Run the operator until SIGTERM or SIGINT. If watching fails, it restarts with a back-off.

    Raises SystemExit with the code 1 if a task failed or the Lease was lost; PortError if a port cannot be opened;
    BatchGrowthError without a usable kubeconfig or service account.
    """
    metrics = OperatorMetrics()
    api = connect(settings.kubeconfig, metrics.request)
    if settings.metrics_port:
        with _port_named("--metrics-port", settings.metrics_port):
            start_http_server(settings.metrics_port, EVERYWHERE, metrics.registry)
    if settings.health_port:
        with _port_named("--health-port", settings.health_port):
            # Opened and closed here, since kopf opens it later, when a failure would look like a failed watch.
            host = settings.health_host or EVERY_IPV4
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            socket.create_server((host, settings.health_port), family=family).close()
    _configure_logs(settings.log_level, settings.log_format)
    failures = 0
    while True:
        began = time.monotonic()
        try:
            if not asyncio.run(_operate(settings, api, metrics)):
                sys.exit(1)
            return
        except Exception as error:
            if time.monotonic() - began > HEALTHY_AFTER_SECONDS:
                failures = 0
            failures += 1
            wait = backoff_seconds(failures)
            refusal = refusal_message(error)
            if refusal is None:
                log.exception("watching failed; retrying in %g s", wait)
            else:
                log.error("%s; retrying in %g s", refusal, wait)
        if _is_stopped_within(wait):
            return


@contextmanager
def _port_named(option: str, port: int) -> Iterator[None]:
    """Raise PortError, which names the option, instead of the OSError of a port that cannot be opened."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while ")[0].lower()  # the address follows
        raise PortError(f"{option} {port}: cannot be opened ({reason}); give another port, or 0 for none") from error


def _is_stopped_within(seconds: float) -> bool:
    """Wait for a signal, and return whether one arrived within this time.

    It needs handlers of its own: the event loop removed its handlers when it closed, and without a handler, the kernel
    drops a signal to the first process of a container.
    """
    arrived: SimpleQueue[int] = SimpleQueue()  # a handler may put into it while the same thread reads it
    before = {name: signal.signal(name, lambda number, _: arrived.put(number)) for name in SIGNALS}
    try:
        arrived.get(timeout=seconds)
    except Empty:
        return False
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    return True


def _configure_logs(level: LogLevel, log_format: LogFormat) -> None:
    configure_logs(level, log_format)
    for name, least in CHATTY.items():
        logging.getLogger(name).setLevel(logging.NOTSET if level is LogLevel.debug else least)
    for handler in logging.getLogger().handlers:
        handler.addFilter(RefusalFilter())


async def _operate(settings: Settings, api: Api, metrics: OperatorMetrics) -> bool:
    """Watch until a signal arrives. Begin with an empty store, because an earlier store may be outdated.

    Return False if it ended because a task failed or the Lease was lost. Raises errors from which kopf cannot recover:
    a watched kind was removed, or the API server refuses for long.
    """
    store = Store()
    metrics.forget_all()
    leadership = Leadership(needs_lease=settings.lease is not None)
    poster = EventPoster(api, lambda: leadership.seconds_left)
    observer = Observer(api, store)
    rate = ProgressRate(settings.defaults)
    writer = Writer(api, store, poster, poster.seconds_left)
    watches = new_watches(metrics.watch_broken)
    reconciler = Reconciler(observer, writer, rate, metrics, settings.operator_class, watches.is_blind)
    passes = Passes(reconciler.make_pass, waits=True)
    leads = asyncio.Event()
    stop = asyncio.Event()
    has_failed = False

    def give_up() -> None:
        nonlocal has_failed
        if not stop.is_set():
            has_failed = True
            stop.set()

    async def lead() -> None:
        """Allow passes while this process leads, then end the process; its replacement waits for the Lease."""
        if settings.lease is None:
            leads.set()
        else:
            await hold(api, settings.lease, leadership, leads.set)
            give_up()

    async def begin() -> None:
        """Begin the passes once the store has every object, so that a job's first pass sees all its children."""
        await watches.until_indexed()
        await leads.wait()
        jobs = [key for key, _ in store.versions(KIND)]
        log.info("begins to work on %d jobs", len(jobs))
        passes.begin({*jobs, *(key for key, _ in store.versions("DaskCluster"))})

    loop = asyncio.get_running_loop()
    # asyncio's own executor has a thread per processor and four more, so most passes would wait for others' writes.
    loop.set_default_executor(ThreadPoolExecutor(MOST_CONCURRENT + OTHER_THREADS, "requests"))
    # kopf forgets a signal if watching fails during the shutdown, so our own handlers set `stop`.
    for name in SIGNALS:
        loop.call_later(SIGNAL_HANDLERS_AFTER_SECONDS, loop.add_signal_handler, name, stop.set)
    # kopf cancels and awaits what is started after it, so these start before.
    beside = [
        _start("lease", lead(), give_up),
        _start("start", begin(), give_up),
        _start("sweep", Sweep(api, store, settings.namespaces).run(passes.wake), give_up),
    ]
    poster.start()
    try:
        await kopf.operator(
            registry=watch.handlers(observer, passes, rate, api.access),
            settings=watch.settings(namespaced=bool(settings.namespaces)),
            memo=kopf.Memo(),
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            standalone=True,
            stop_flag=stop,
            liveness_endpoint=health_endpoint(settings.health_host, settings.health_port),
        )
    except Exception:
        if not stop.is_set():
            raise
        log.warning("watching failed during shutdown", exc_info=True)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await loop.shutdown_default_executor()  # the writes in progress, whose passes were cancelled, have events too
        poster.stop()
    return not has_failed


def health_endpoint(host: str, port: int) -> str | None:
    """Return the URL at which kopf answers health probes; None without a port.

    kopf listens on one family of addresses. Kubernetes probes the first address of the pod, so the chart names that.
    """
    if not port:
        return None
    named = host or EVERY_IPV4
    return f"http://[{named}]:{port}/healthz" if ":" in named else f"http://{named}:{port}/healthz"


def _start(name: str, work: Coroutine[Any, Any, None], give_up: Callable[[], None]) -> asyncio.Task[None]:
    """Run this task beside kopf. If it fails, give up, so that Kubernetes replaces the process: without the task it
    would only seem to work.
    """
    task = asyncio.create_task(work, name=name)

    def end_if_it_failed(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("the task %s failed, so this process ends", name, exc_info=error)
            give_up()

    task.add_done_callback(end_if_it_failed)
    return task
