"""kopf's handlers: every watch event updates the cache and wakes the job's queue."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from batchgrowth import names

from batchgrowth_operator.api.cache import key_of
from batchgrowth_operator.api.client import Access
from batchgrowth_operator.api.observe import Observer
from batchgrowth_operator.api.server import JOBS, KINDS, WATCHED, Kind
from batchgrowth_operator.loop.framework import kopf
from batchgrowth_operator.loop.queue import Passes, ProgressRate
from batchgrowth_operator.seen.observed import ref_of

INACTIVITY_SECONDS = 70
"""Silence after which a watch counts as broken."""
WATCH_SECONDS = 300
"""Length of a watch, after which the server ends it and kopf reconnects."""
BACKOFFS_SECONDS = (0.2, 0.5, 1, 2, 3, 5)
"""Waits between attempts of kopf's requests; kopf also retries refused ones."""
STARTUP_SECONDS = 5.0
"""Time for which a namespaced operator must not retry a 403: kopf first tries to list all namespaces."""
IDLE_SECONDS = 1.0
"""Time for which kopf keeps a task, with the newest body, for each changed object."""
PAGE = 250
"""Objects per page of a list, so that a thousand jobs and their children are never in memory at once."""
HEAVY = frozenset({"spec", "status", "data"})
IDENTITY = frozenset({"name", "namespace", "uid", "resourceVersion", "labels"})

Begin = Callable[[], Passes]


def registry_of(
    observer: Observer, rate: ProgressRate, begin: Begin, access: Callable[[], Access]
) -> kopf.OperatorRegistry:
    """Handlers that update the observer's store and wake the queues that `begin` creates.

    kopf indexes an object before its event. No handler adds a finalizer or an annotation to an object.
    """
    registry = kopf.OperatorRegistry()
    _log_in(registry, access)
    _start_and_stop(registry, begin)
    for name, kind in (JOBS | WATCHED).items():
        _watch(registry, name, kind, observer, rate)
    return registry


def settings(*, namespaced: bool) -> kopf.OperatorSettings:
    """Kopf's settings: watches by label that reconnect regularly, and no events or annotations of kopf's own."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    chosen.networking.error_backoffs = () if namespaced else BACKOFFS_SECONDS
    chosen.queueing.idle_timeout = IDLE_SECONDS
    chosen.watching.chunk_size = PAGE
    chosen.watching.server_timeout = WATCH_SECONDS
    chosen.watching.inactivity_timeout = INACTIVITY_SECONDS
    for kind in WATCHED.values():
        chosen.watching.label_selectors[_resource(kind)] = names.JOB_LABEL
    return chosen


def _watch(registry: kopf.OperatorRegistry, name: str, kind: Kind, observer: Observer, rate: ProgressRate) -> None:
    async def index(body: kopf.Body, **_: Any) -> None:
        observer.store.update(_with_type(name, dict(body)))
        _strip(body)

    async def event(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
        body = _with_type(name, dict(event["object"]))
        if event["type"] == "DELETED":
            memo.passes.wake(observer.store.remove(body))
        elif not observer.store.is_concluded(body):
            key = key_of(body)
            memo.passes.wake(key, 0.0 if observer.note_change(key, ref_of(body)) else rate.seconds_apart)

    kopf.index(*_resource(kind), registry=registry, id=f"index-{kind.plural}")(index)
    kopf.on.event(*_resource(kind), registry=registry, id=f"event-{kind.plural}")(event)


def _strip(body: Mapping[str, Any]) -> None:
    """Removes all but the object's identity, since kopf keeps an object in memory as long as its task."""
    for field in body["metadata"].keys() - IDENTITY:
        del body["metadata"][field]
    for field in HEAVY & body.keys():
        if isinstance(body[field], dict):
            body[field].clear()


def _resource(kind: Kind) -> tuple[str, ...]:
    return (kind.group, kind.version, kind.plural) if kind.group else (kind.version, kind.plural)


def _with_type(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """The object with kind and apiVersion, which the items of a list lack."""
    return {"kind": name, "apiVersion": KINDS[name].api_version} | body


def _log_in(registry: kopf.OperatorRegistry, log_in_as: Callable[[], Access]) -> None:
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**asdict(log_in_as()))

    kopf.on.login(registry=registry)(log_in)


def _start_and_stop(registry: kopf.OperatorRegistry, begin: Begin) -> None:
    async def start(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
        backoffs = ("error_backoffs", BACKOFFS_SECONDS)
        asyncio.get_running_loop().call_later(STARTUP_SECONDS, setattr, settings.networking, *backoffs)
        memo.passes = begin()

    async def stop(memo: kopf.Memo, **_: Any) -> None:
        await memo.passes.stop()

    kopf.on.startup(registry=registry)(start)
    kopf.on.cleanup(registry=registry)(stop)
