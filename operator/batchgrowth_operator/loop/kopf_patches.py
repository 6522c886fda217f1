"""Patches of kopf's imports, startup, watches, discovery and shutdown, and the watches that are broken at the moment.

Each patch says which fault it fixes; docs/decisions/0011-kopf-mended.md lists all. The import is patched first, and all
else below `_watches`.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

CLIENT = "kubernetes_asyncio"
"""A client library that kopf need not load."""
POLL_SECONDS = 0.1
"""Time between two looks at what kopf does not notify of."""
FIRST_LIST_SECONDS = 20.0
"""Time that the first list of a watch of one namespace may take before the other namespaces no longer wait for it."""
NOT_OF_A_NAMESPACE = (401, 404)
"""Statuses of a watch after which kopf must log in or ask again which kinds are served."""
OF_KOPF = ("customresourcedefinitions", "namespaces")
"""Kinds that kopf watches for itself, and does without if the API server refuses it."""
REDISCOVERY_SECONDS = (0.5, 2, 8)
"""Delays of the further discoveries, each after the one before."""

# If kubernetes_asyncio is installed, as dask-kubernetes requires, kopf imports it for its types alone. That would cost
# 30 MiB and most of a second at every start.
_modules: dict[str, Any] = sys.modules
_is_hidden = _modules.setdefault(CLIENT, None) is None  # None makes the import raise ModuleNotFoundError

import kopf  # noqa: E402
from kopf._cogs.aiokits import aiotasks, aiotime  # noqa: E402
from kopf._cogs.aiokits.aiotasks import Scheduler  # noqa: E402
from kopf._cogs.aiokits.aiotoggles import Toggle, ToggleSet  # noqa: E402
from kopf._cogs.clients import errors, watching  # noqa: E402
from kopf._core.reactor import observation, orchestration, queueing  # noqa: E402

from batchgrowth_operator.seen.observed import backoff_seconds  # noqa: E402

if _is_hidden:
    del _modules[CLIENT]

__all__ = ["RefusalFilter", "Watches", "kopf", "new_watches", "refusal_message"]

log = logging.getLogger(__name__)


async def _wait_until_empty(scheduler: Scheduler) -> None:
    """Poll until the scheduler has no work.

    If watching fails, kopf cancels every task of the event loop, among them those that notify its schedulers when their
    work is done; a scheduler that is closed afterwards would wait forever.
    """
    while not scheduler.empty():
        await asyncio.sleep(POLL_SECONDS)


@dataclass(slots=True)
class Watches:
    """The watches of one run of kopf, and which of those in one namespace are broken at the moment."""

    ensemble: orchestration.Ensemble | None = None
    report: Callable[[str, str, bool], None] = lambda *_: None
    """Called with namespace, resource and whether it is broken whenever a watch of one namespace breaks or resumes,
    and with "" for the whole cluster when a broken watch ends all others."""
    broken: set[tuple[str, str]] = field(default_factory=set)
    """Namespace and resource of each watch that waits before it tries again."""

    def is_blind(self, namespace: str) -> bool:
        """Return whether a watch in that namespace is broken, so that nothing can be decided there."""
        return any(known == namespace for known, _ in self.broken)

    def breaks(self, namespace: str, resource: str) -> None:
        """Note that the watch is refused, or has sent no list in time."""
        self.broken.add((namespace, resource))
        self.report(namespace, resource, True)

    def resumes(self, namespace: str, resource: str) -> None:
        """Note that the watch has listed all objects."""
        if (namespace, resource) in self.broken:
            self.broken.discard((namespace, resource))
            self.report(namespace, resource, False)
            log.info("the watch of %s in the namespace %s resumes", resource, namespace)

    async def until_indexed(self) -> None:
        """Return once every object of every watched kind has been listed and indexed."""
        while self.ensemble is None or not self.ensemble.watcher_tasks or self.ensemble.operator_indexed.is_off():
            await asyncio.sleep(POLL_SECONDS)


def new_watches(report: Callable[[str, str, bool], None] = lambda *_: None) -> Watches:
    """Register and return the watches for kopf, which this task is about to run."""
    watches = Watches(report=report)
    _watches.set(watches)
    return watches


def _this_runs_watches() -> Watches:
    """Return the watches of the run of kopf that this task is part of; new ones if nobody has asked for them."""
    return _watches.get() or new_watches()


class _Indexed(ToggleSet):  # type: ignore[misc]  # kopf's own type is unknown to mypy
    """The objects and kinds that are not indexed yet. Unlike in kopf itself, no object waits for them.

    While kopf starts, every object would wait in a task of its own until all are indexed, and each indexed object would
    wake all waiting ones: that takes four minutes for 7,000 objects, and 90 MiB. Here, only the passes wait, in
    `Watches.until_indexed`.
    """

    async def make_toggle(self, state: bool = False, *, name: str | None = None) -> Toggle:
        made = Toggle(state, name=name, condition=self._condition)
        self._toggles.add(made)
        return made

    async def drop_toggle(self, toggle: Toggle) -> None:
        self._toggles.discard(toggle)

    async def wait_for(self, state: bool) -> None:
        """Return at once; kopf itself would wait here for all other objects."""


async def _discover(*, raw_event: Any, stream_pressure: asyncio.Event | None = None, **rest: Any) -> None:
    """Ask a few more times which kinds are served.

    When a CRD appears or disappears, kopf asks at once, when the API server may not know it yet: a kind that came back
    would never be watched again.
    """
    await _discover_once(raw_event=raw_event, stream_pressure=stream_pressure, **rest)
    for seconds in REDISCOVERY_SECONDS if raw_event["type"] is not None else ():
        await aiotime.sleep(seconds, wakeup=stream_pressure)
        if stream_pressure is not None and stream_pressure.is_set():
            return  # the next event has arrived and starts its own discoveries
        await _discover_once(raw_event=raw_event, stream_pressure=stream_pressure, **rest)


async def _adjust(*, ensemble: orchestration.Ensemble, **rest: Any) -> None:
    """Keep the watches that kopf starts, for `Watches`."""
    await _adjust_tasks(ensemble=ensemble, **rest)
    _this_runs_watches().ensemble = ensemble


async def _orchestrate(**given: Any) -> None:
    """If one watch fails, end every watch before the error ends the operator.

    kopf closes its connections first and cancels the other watches last, which would log a traceback each.
    """
    watches = _this_runs_watches()
    try:
        await _orchestrate_until_error(**given)
    except Exception:
        found = watches.ensemble
        tasks = () if found is None else found.get_tasks(found.get_keys())
        await aiotasks.stop(tasks, title="streaming", quiet=True)
        raise


async def _watch(**given: Any) -> AsyncIterator[Any]:
    """Watch without pauses, and log each time that a broken watch lists all objects again.

    When the task that reports pauses ends, kopf's watch believes that a pause has begun. The watch swallows its
    cancellation, starts over, and waits forever for new credentials: the operator would hang instead of retrying. An
    operator without peers never pauses, so no watch needs such a task.

    A watch of one namespace that the API server refuses backs off alone, whereas kopf would end all watches: the
    namespace may be gone, and its rights with it. It counts as listed meanwhile, so that the other namespaces need not
    wait for it; `Watches.is_blind` keeps its jobs from being decided on. A watch whose first list takes long counts
    as listed too.
    """
    watches = _this_runs_watches()
    namespace = given.get("namespace")
    resource = str(getattr(given["resource"], "plural", given["resource"]))
    is_listed = False
    failures = 0
    while True:
        try:
            events = _watch_until_paused(**given | {"operator_paused": None})
            if namespace is not None and not is_listed:
                events = _with_patience(events, FIRST_LIST_SECONDS)
            async for event in events:
                if event is None:
                    failures += 1
                    is_listed = True
                    watches.breaks(str(namespace), resource)
                    text = (
                        "the watch of %s in the namespace %s: the API server has sent no list in %g s; it still waits"
                    )
                    log.error(text, resource, namespace, FIRST_LIST_SECONDS)
                    yield watching.Bookmark.LISTED
                    continue
                if event is watching.Bookmark.LISTED:
                    if is_listed and not failures:
                        log.warning("the watch of %s broke; it resumes after a new list", given["resource"])
                    is_listed = True
                    failures = 0
                    watches.resumes(str(namespace), resource)
                yield event
            return
        except (errors.APIError, watching.WatchingError) as error:
            if namespace is None or getattr(error, "status", None) in NOT_OF_A_NAMESPACE:
                if resource not in OF_KOPF:
                    watches.report(namespace or "", resource, True)  # until the operator starts over
                raise
            failures += 1
            refusal = refusal_message(error) or str(error)
        seconds = backoff_seconds(failures)
        watches.breaks(namespace, resource)
        log.error("the watch of %s in the namespace %s: %s; retrying in %g s", resource, namespace, refusal, seconds)
        if not is_listed:
            is_listed = True
            yield watching.Bookmark.LISTED
        await asyncio.sleep(seconds)


async def _with_patience(events: AsyncIterator[Any], seconds: float) -> AsyncIterator[Any]:
    """Yield the events, and None before them if the first one takes longer than `seconds`."""
    first = asyncio.ensure_future(anext(events, None))
    try:
        arrived, _ = await asyncio.wait({first}, timeout=seconds)
        if not arrived:
            yield None
        event = await first
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    if event is None:
        return
    yield event
    async for event in events:
        yield event


async def _observe(**given: Any) -> None:
    """Watch namespaces or kinds; if a refusal and a cancellation coincide, end by the cancellation.

    If the API server refuses kopf that watch, kopf goes on without. If the operator shuts down at that moment, because
    another watch was refused too, kopf would lose the cancellation, go on, and the shutdown would wait forever.
    """
    try:
        await queueing.watcher(**given)
    except errors.APIForbiddenError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        raise


_watches: ContextVar[Watches | None] = ContextVar("_watches", default=None)
"""The watches of the run of kopf that this task is part of."""

Scheduler.wait = _wait_until_empty
_discover_once = observation.process_discovered_resource_event
observation.process_discovered_resource_event = _discover
observation.queueing = SimpleNamespace(watcher=_observe)
_adjust_tasks = orchestration.adjust_tasks
orchestration.adjust_tasks = _adjust
_orchestrate_until_error = orchestration.orchestrator
orchestration.orchestrator = _orchestrate
_watch_until_paused = watching.infinite_watch
watching.infinite_watch = _watch
orchestration.aiotoggles = SimpleNamespace(ToggleSet=_Indexed)

REMEDY = "grant it to the operator's account: the chart's roles have every permission that the operator needs"
_ATTEMPT = "Request attempt"
_OMITTED = (f"status={HTTPStatus.FORBIDDEN.value}", "Connector is closed")  # kopf closes the connector when it stops


def refusal_message(error: BaseException) -> str | None:
    """Return the API server's message, with a remedy for a 403; None if the error is not the API server's response."""
    status = getattr(error, "status", None)
    message = getattr(error, "message", None)
    if not isinstance(status, int):
        return None
    refusal = f"the API server answers {status}: {message or type(error).__name__}"
    return f"{refusal}; {REMEDY}" if status == HTTPStatus.FORBIDDEN else refusal


class RefusalFilter(logging.Filter):
    """Drops kopf's own log records of a refusal: one per attempt, and a traceback for each level that re-raises it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        if not record.name.startswith("kopf."):
            return True
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage()
        is_attempt = text.startswith(_ATTEMPT) and any(omitted in text for omitted in _OMITTED)
        return not is_attempt and (error is None or refusal_message(error) is None)
