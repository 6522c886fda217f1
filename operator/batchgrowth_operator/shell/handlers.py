"""kopf's part: it watches, and every event comes down to "look at this job again"."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from batchgrowth import names

from batchgrowth_operator.server.api import Access
from batchgrowth_operator.server.kinds import JOBS, KINDS, WATCHED, Kind
from batchgrowth_operator.server.store import Store, key_of
from batchgrowth_operator.shell.framework import kopf
from batchgrowth_operator.shell.passes import Passes

INACTIVE_SECONDS = 70
SERVER_SECONDS = 300
BACKOFFS = (0.2, 0.5, 1, 2, 3, 5)
"""Waits between tries of a request of kopf's. It tries a refused one again, too."""
BEGINNING_SECONDS = 5.0
"""An operator of a few namespaces asks first whether it may list them all, and is to take a no for a no."""
IDLE_SECONDS = 1.0
"""So long kopf has a task, with the newest body, for each object that changed."""
PAGE = 250
"""Objects that are listed at a time: a thousand jobs with all their children are never in memory at once."""
HEAVY = frozenset({"spec", "status", "data"})
NAMING = frozenset({"name", "namespace", "uid", "resourceVersion", "labels"})

Begin = Callable[[], Passes]


def registry_of(store: Store, begin: Begin, access: Callable[[], Access]) -> kopf.OperatorRegistry:
    """Handlers that feed `store` and wake the passes that `begin` makes.

    Indexing comes before any event, of one object and, at the beginning, of all kinds: the first pass of a job sees all
    its children.
    Nothing here adds a finalizer or an annotation to anybody's object.
    """
    registry = kopf.OperatorRegistry()
    _log_in(registry, access)
    _start_and_stop(registry, begin)
    for name, kind in (JOBS | WATCHED).items():
        _watch(registry, name, kind, store)
    return registry


def settings(*, namespaced: bool) -> kopf.OperatorSettings:
    """Watches by label, which end by themselves now and then; nothing of kopf's own in anybody's object."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    chosen.networking.error_backoffs = () if namespaced else BACKOFFS
    chosen.queueing.idle_timeout = IDLE_SECONDS
    chosen.watching.chunk_size = PAGE
    chosen.watching.server_timeout = SERVER_SECONDS
    chosen.watching.inactivity_timeout = INACTIVE_SECONDS
    for kind in WATCHED.values():
        chosen.watching.label_selectors[_where(kind)] = names.JOB_LABEL
    return chosen


def _watch(registry: kopf.OperatorRegistry, name: str, kind: Kind, store: Store) -> None:
    async def index(body: kopf.Body, **_: Any) -> None:
        store.saw(_whole(name, dict(body)))
        _empty(body)

    async def event(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
        body = _whole(name, dict(event["object"]))
        memo.passes.wake(store.gone(body) if event["type"] == "DELETED" else key_of(body))

    kopf.index(*_where(kind), registry=registry, id=f"index-{kind.plural}")(index)
    kopf.on.event(*_where(kind), registry=registry, id=f"event-{kind.plural}")(event)


def _empty(body: Mapping[str, Any]) -> None:
    """Leaves of an object what names it: kopf has every single one in its hands until it has seen them all."""
    for field in body["metadata"].keys() - NAMING:
        del body["metadata"][field]
    for field in HEAVY & body.keys():
        if isinstance(body[field], dict):
            body[field].clear()


def _where(kind: Kind) -> tuple[str, ...]:
    return (kind.group, kind.version, kind.plural) if kind.group else (kind.version, kind.plural)


def _whole(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Objects in lists come without what the list says for all of them."""
    return {"kind": name, "apiVersion": KINDS[name].api_version} | body


def _log_in(registry: kopf.OperatorRegistry, log_in_as: Callable[[], Access]) -> None:
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**asdict(log_in_as()))

    kopf.on.login(registry=registry)(log_in)


def _start_and_stop(registry: kopf.OperatorRegistry, begin: Begin) -> None:
    async def start(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
        patience = ("error_backoffs", BACKOFFS)
        asyncio.get_running_loop().call_later(BEGINNING_SECONDS, setattr, settings.networking, *patience)
        memo.passes = begin()

    async def stop(memo: kopf.Memo, **_: Any) -> None:
        await memo.passes.stop()

    kopf.on.startup(registry=registry)(start)
    kopf.on.cleanup(registry=registry)(stop)
