"""What a watch event causes: the store has it, and the job's queue is woken if a pass may have something to do."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth_operator.api.cache import Key, Store
from batchgrowth_operator.api.client import ServerClock
from batchgrowth_operator.api.observe import Observer
from batchgrowth_operator.loop.queue import ProgressRate
from batchgrowth_operator.loop.watch import handlers
from batchgrowth_operator.settings import Defaults

KEY = Key("default", "digits")
UNUSED: Any = None


def body(version: int, plural: str) -> dict[str, Any]:
    kind = {"batchgrowthjobs": "BatchGrowthJob", "configmaps": "ConfigMap", "deployments": "Deployment"}[plural]
    name = names.of("digits").progress if kind == "ConfigMap" else "digits"
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(version), "uid": "0000-1111"}
    owned = {"labels": {names.JOB_LABEL: "digits"}, "ownerReferences": [{"uid": "0000-1111"}]}
    return {"kind": kind, "metadata": metadata | owned, "data": {names.PROGRESS_KEY: "a report"}}


class Events:
    """The handlers of an operator's events, and the jobs that they woke."""

    def __init__(self) -> None:
        self.store = Store()
        rate = ProgressRate(Defaults(image="example/trainer:1"))
        self.woken: list[Key] = []
        passes: Any = SimpleNamespace(wake=lambda key, apart=0.0: self.woken.append(key))
        api: Any = SimpleNamespace(clock=ServerClock())
        self.observer = Observer(api, self.store)
        registry = handlers(self.observer, passes, rate, UNUSED)
        self._handlers = {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}

    def arrive(self, version: int, plural: str = "batchgrowthjobs", kind: str = "MODIFIED") -> list[Key]:
        """The jobs that this event wakes."""
        self.woken.clear()
        event = {"type": kind, "object": body(version, plural)}
        asyncio.run(self._handlers[f"event-{plural}"](event=event))
        return self.woken


@pytest.fixture
def events() -> Events:
    return Events()


def test_a_job_is_woken_by_what_happens_to_it_and_its_children(events: Events) -> None:
    assert events.arrive(1) == [KEY]
    assert events.arrive(2, "deployments") == [KEY]
    assert events.arrive(3, "deployments", "DELETED") == [KEY]
    assert events.arrive(4, kind="DELETED") == [KEY]


def test_the_echo_of_written_progress_wakes_nobody(events: Events) -> None:
    """But what another changed before or after that write does, and so does an object of that version."""
    events.store.update(body(1, "batchgrowthjobs"))
    events.store.update(body(5, "batchgrowthjobs"), is_progress_only=True)

    assert [[*events.arrive(version)] for version in (4, 5, 6)] == [[KEY], [], [KEY]]
    assert events.arrive(5, "deployments") == [KEY]
    assert events.arrive(5, kind="DELETED") == [KEY]


def test_a_replica_that_does_not_lead_forgets_deleted_jobs(events: Events) -> None:
    """It makes no passes, and notes reports all the same, so that it knows their ages once it leads."""
    events.store.update(body(1, "batchgrowthjobs"))
    events.store.update(body(2, "configmaps"))
    events.arrive(2, "configmaps")
    assert events.observer._memories.keys() == {KEY}

    events.arrive(3, "configmaps", "DELETED")
    assert events.observer._memories.keys() == {KEY}, "the job is still there"
    events.arrive(4, kind="DELETED")

    assert events.observer._memories == {}
