"""kopf's handlers: every watch event updates the store and wakes the job's queue."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from batchgrowth import names

from batchgrowth_operator.api.cache import key_of
from batchgrowth_operator.api.client import JOBS, KINDS, PAGE, WATCHED, Access, Kind
from batchgrowth_operator.api.observe import Observer
from batchgrowth_operator.loop.kopf_patches import kopf
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
HEAVY = frozenset({"spec", "status", "data"})
"""Fields of an object that kopf need not keep."""
IDENTITY = frozenset({"name", "namespace", "uid", "resourceVersion", "labels"})
"""Metadata that kopf needs of an object."""


def settings(*, namespaced: bool) -> kopf.OperatorSettings:
    """Return kopf's settings: watches by label that reconnect regularly, and no events or annotations of kopf's own."""
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


def handlers(
    observer: Observer, passes: Passes, rate: ProgressRate, access: Callable[[], Access]
) -> kopf.OperatorRegistry:
    """Return the handlers that log in, update the observer's store, wake the queues, and stop them at the end.

    No handler adds a finalizer or an annotation to an object.
    """
    registry = kopf.OperatorRegistry()

    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        backoffs = ("error_backoffs", BACKOFFS_SECONDS)
        asyncio.get_running_loop().call_later(STARTUP_SECONDS, setattr, settings.networking, *backoffs)

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**asdict(access()))

    async def stop(**_: Any) -> None:
        await passes.stop()

    kopf.on.startup(registry=registry)(start)
    kopf.on.login(registry=registry)(log_in)
    kopf.on.cleanup(registry=registry)(stop)
    for name, kind in (JOBS | WATCHED).items():
        _watch(registry, name, kind, observer, passes, rate)
    return registry


def _watch(
    registry: kopf.OperatorRegistry, name: str, kind: Kind, observer: Observer, passes: Passes, rate: ProgressRate
) -> None:
    """Add the handlers of a kind."""

    # kopf calls `index` before `event`, and for every object of the first list, so the store has the object when the
    # pass that `event` wakes reads it. An event handler alone would miss what was there before the operator.
    async def index(body: kopf.Body, **_: Any) -> None:
        observer.store.update(_with_type(name, dict(body)))
        _strip(body)

    async def event(event: kopf.RawEvent, **_: Any) -> None:
        body = _with_type(name, dict(event["object"]))
        key = key_of(body)
        if event["type"] == "DELETED":
            observer.store.remove(body)
            if observer.store.job(key) is None:  # a replica that does not lead makes no pass that would find it gone
                observer.forget(key)
            passes.wake(key)
        elif observer.store.is_progress_echo(body):
            return
        # Asked for every report: the age of the trainer's newest report counts from here.
        elif observer.note_change(key, ref_of(body)):
            passes.wake(key)
        else:
            passes.wake(key, rate.seconds_apart)

    kopf.index(*_resource(kind), registry=registry, id=f"index-{kind.plural}")(index)
    kopf.on.event(*_resource(kind), registry=registry, id=f"event-{kind.plural}")(event)


def _strip(body: Mapping[str, Any]) -> None:
    """Remove everything but the object's identity, because kopf keeps an object in memory as long as its task."""
    for field in body["metadata"].keys() - IDENTITY:
        del body["metadata"][field]
    for field in HEAVY & body.keys():
        if isinstance(body[field], dict):
            body[field].clear()


def _resource(kind: Kind) -> tuple[str, ...]:
    if kind.group:
        return kind.group, kind.version, kind.plural
    return kind.version, kind.plural


def _with_type(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the object with its kind and apiVersion, which the items of a list lack."""
    return {"kind": name, "apiVersion": KINDS[name].api_version} | body
