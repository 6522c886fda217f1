"""The patches of kopf: the private names they rely on, and what each of them mends."""

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import AsyncIterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from batchgrowth_operator.loop import kopf_patches
from batchgrowth_operator.loop.metrics import OperatorMetrics
from batchgrowth_operator.loop.watch import _strip
from batchgrowth_operator.process import CHATTY
from kopf._cogs.aiokits.aiotasks import Scheduler
from kopf._cogs.aiokits.aiotoggles import ToggleSet
from kopf._cogs.clients import api, fetching, watching
from kopf._cogs.clients.errors import APIError, APIForbiddenError
from kopf._cogs.structs.references import Insights, Resource
from kopf._core.actions import lifecycles
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.reactor import observation, orchestration, processing, queueing
from kopf._core.reactor.inventory import ResourceMemories

AIOKITS = "kopf._cogs.aiokits"
OBSERVATION, ORCHESTRATION = "kopf._core.reactor.observation", "kopf._core.reactor.orchestration"
PODS = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True, verbs=frozenset({"list", "watch"}))
JOBS = Resource(group="batch", version="v1", plural="jobs", kind="Job", namespaced=True, verbs=PODS.verbs)
NAMESPACES = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
REFUSED = APIForbiddenError({"message": "forbidden"}, status=403, headers={})


def pristine(module: str) -> ModuleType:
    """kopf's module as kopf ships it, without our replacements."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh


@pytest.mark.parametrize(
    ("module", "name", "parameters"),
    [
        (f"{AIOKITS}.aiotime", "sleep", {"wakeup"}),
        (f"{AIOKITS}.aiotasks", "Scheduler.wait", {"self"}),
        (f"{AIOKITS}.aiotasks", "Scheduler.empty", {"self"}),
        (f"{AIOKITS}.aiotoggles", "Toggle.__init__", {"name", "condition"}),
        (f"{AIOKITS}.aiotoggles", "ToggleSet.is_on", {"self"}),
        (f"{AIOKITS}.aiotoggles", "ToggleSet.make_toggle", {"name"}),
        (f"{AIOKITS}.aiotoggles", "ToggleSet.drop_toggle", {"toggle"}),
        (f"{AIOKITS}.aiotoggles", "ToggleSet.wait_for", {"self"}),
        (ORCHESTRATION, "Ensemble.__init__", {"operator_indexed", "watcher_tasks"}),
        (OBSERVATION, "process_discovered_resource_event", {"raw_event", "stream_pressure"}),
        (ORCHESTRATION, "orchestrator", {"insights"}),
        (ORCHESTRATION, "adjust_tasks", {"ensemble"}),
        (ORCHESTRATION, "Ensemble.get_keys", {"self"}),
        (ORCHESTRATION, "Ensemble.get_tasks", {"keys"}),
        (f"{AIOKITS}.aiotasks", "stop", {"tasks", "title", "quiet"}),
        ("kopf._cogs.clients.watching", "infinite_watch", {"operator_paused"}),
    ],
)
def test_kopf_still_has_the_private_function(module: str, name: str, parameters: set[str]) -> None:
    """A new version of kopf without it, or without a parameter that kopf_patches uses, fails here by name."""
    found: Any = pristine(module)
    for part in name.split("."):
        assert part in vars(found), f"{module}.{name}"
        found = vars(found)[part]
    assert parameters <= inspect.signature(found).parameters.keys(), f"{module}.{name}"


@pytest.mark.parametrize("attribute", ["_condition", "_fn", "_toggles"])
def test_kopf_s_toggle_sets_still_have_the_private_attribute(attribute: str) -> None:
    assert hasattr(pristine(f"{AIOKITS}.aiotoggles").ToggleSet(all), attribute), f"ToggleSet.{attribute}"


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (f"{AIOKITS}.aiotasks", "await self.wait()"),
        ("kopf._core.reactor.processing", "operator_indexed.drop_toggle("),
        ("kopf._core.reactor.queueing", "operator_indexed.make_toggle("),
        (OBSERVATION, "functools.partial(process_discovered_resource_event"),
        (OBSERVATION, "await queueing.watcher("),
        ("kopf._core.reactor.running", "orchestration.orchestrator("),
        (ORCHESTRATION, "await adjust_tasks("),
        ("kopf._core.reactor.queueing", "watching.infinite_watch("),
        ("kopf._cogs.clients.api", "Request attempt"),
    ],
)
def test_kopf_still_calls_what_is_replaced_and_logs_what_is_filtered(module: str, text: str) -> None:
    assert text in inspect.getsource(importlib.import_module(module)), f"{module}: {text}"


@pytest.mark.parametrize(
    ("module", "variable", "name"),
    [("kopf._core.actions.loggers", "logger", "kopf.objects"), ("aiohttp.log", "access_logger", "aiohttp.access")],
)
def test_a_chatty_logger_still_has_the_name(module: str, variable: str, name: str) -> None:
    assert name in CHATTY
    assert name == getattr(importlib.import_module(module), variable).name


def test_kopf_s_bodies_are_still_views() -> None:
    """So that stripping a body frees the memory of the object that kopf keeps."""
    raw = {"metadata": {"name": "x", "annotations": {"a": "b"}}, "spec": {"a": 1}, "data": None}

    _strip(kopf_patches.kopf.Body(raw))

    assert raw == {"metadata": {"name": "x"}, "spec": {}, "data": None}


def test_an_unused_client_library_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is hidden from kopf only; other code can still import it."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("kopf", "kubernetes_asyncio")]:
        monkeypatch.delitem(sys.modules, name)

    kopf_patches = _reload(monkeypatch)

    assert "kubernetes_asyncio" not in sys.modules
    assert callable(kopf_patches.kopf.operator)


def test_a_loaded_client_library_stays_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("kubernetes_asyncio")
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", theirs)

    _reload(monkeypatch)

    assert theirs is sys.modules["kubernetes_asyncio"]


def _reload(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delitem(sys.modules, "batchgrowth_operator.loop.kopf_patches", raising=False)
    return importlib.import_module("batchgrowth_operator.loop.kopf_patches")


def test_a_scheduler_whose_own_tasks_are_cancelled_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If watching fails, kopf cancels every task, also the one that reports to the scheduler that work is done."""
    _reload(monkeypatch)
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)  # cancellation takes more than one step
            ended.append(True)

    async def scene() -> None:
        scheduler = Scheduler()
        await scheduler.spawn(work())
        await asyncio.sleep(0.01)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        async with asyncio.timeout(10):
            await scheduler.close()

    asyncio.run(scene())

    assert ended == [True]


def test_a_wait_for_a_pause_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf's loop that stops the daemons of a paused operator has no other, so nothing else would ever run."""
    _reload(monkeypatch)

    async def scene() -> bool:
        waiting = asyncio.create_task(ToggleSet(any).wait_for(True))
        done, _ = await asyncio.wait({waiting}, timeout=0.01)
        waiting.cancel()
        return bool(done)

    assert not asyncio.run(scene())


def test_passes_wait_until_all_objects_are_indexed_and_no_object_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are listed at once, pods late; no task of a job is left when the pods come, and only then may passes run."""
    kopf_patches, objects, indexed, handled = _reload(monkeypatch), 200, [], []
    registry, settings = kopf_patches.kopf.OperatorRegistry(), kopf_patches.kopf.OperatorSettings()
    settings.posting.enabled, settings.queueing.idle_timeout = False, 0.01

    async def list_then_wait(*, resource: Resource, **_: Any) -> AsyncIterator[Any]:
        if resource == PODS:
            await pods_are_there.wait()
        for number in range(objects):
            yield {"type": None, "object": {"metadata": {"name": f"{number}", "uid": f"{resource.plural}-{number}"}}}
        yield watching.Bookmark.LISTED
        await forever()

    for resource in (PODS, JOBS):
        selector = (resource.group, resource.version, resource.plural) if resource.group else ("v1", "pods")
        kopf_patches.kopf.index(*selector, registry=registry, id=f"i-{resource.plural}")(
            lambda body, **_: indexed.append(body["metadata"]["uid"])
        )
        kopf_patches.kopf.on.event(*selector, registry=registry, id=f"e-{resource.plural}")(
            lambda body, **_: handled.append(body["metadata"]["uid"])
        )
    indexers = OperatorIndexers()
    indexers.ensure(registry._indexing.get_all_handlers())
    processor = partial(
        processing.process_resource_event, lifecycle=lifecycles.all_at_once, indexers=indexers, registry=registry,
        settings=settings, memories=ResourceMemories(), memobase=kopf_patches.kopf.Memo(), event_queue=asyncio.Queue(),
    )  # fmt: skip

    async def scene() -> None:
        watches, insights = kopf_patches.new_watches(), Insights()
        given = {"identity": "", "processor": processor, "operator_paused": ToggleSet(any)}
        orchestrating = asyncio.create_task(orchestration.orchestrator(insights=insights, settings=settings, **given))
        waiting = asyncio.create_task(watches.until_indexed())
        await asyncio.sleep(0)
        async with insights.revised:
            insights.namespaces.add("default")
            insights.watched_resources.update({PODS, JOBS})
            insights.indexed_resources.update({PODS, JOBS})
            insights.revised.notify_all()
        while len(handled) < objects:
            await asyncio.sleep(0.01)
        while any("worker" in task.get_name() for task in asyncio.all_tasks()):
            await asyncio.sleep(0.01)
        assert not waiting.done()

        pods_are_there.set()
        await asyncio.wait_for(waiting, 10)
        assert 2 * objects == len(indexed)
        orchestrating.cancel()
        await asyncio.wait({orchestrating}, timeout=10)

    pods_are_there = asyncio.Event()
    monkeypatch.setattr(watching, "infinite_watch", list_then_wait)
    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.fault("B15")
@pytest.mark.parametrize(
    ("event", "is_interrupted", "discoveries"),
    [("ADDED", False, 3), ("DELETED", False, 3), ("ADDED", True, 1), (None, False, 1)],
)
def test_kinds_are_rediscovered(
    monkeypatch: pytest.MonkeyPatch, event: str | None, is_interrupted: bool, discoveries: int
) -> None:
    """After a CRD was added or removed, unless another event has arrived; not for CRDs that kopf has just listed."""
    kopf_patches, discovered = _reload(monkeypatch), []

    async def discover(**given: Any) -> None:
        discovered.append(given["raw_event"]["type"])

    async def scene() -> None:
        pressure = asyncio.Event()
        if is_interrupted:
            pressure.set()
        await observation.process_discovered_resource_event(
            raw_event={"type": event, "object": {}}, stream_pressure=pressure
        )

    monkeypatch.setattr(kopf_patches, "_discover_once", discover)
    monkeypatch.setattr(kopf_patches, "REDISCOVERY_SECONDS", (0.001, 0.001))
    asyncio.run(scene())

    assert [event] * discoveries == discovered


async def forever(**_: Any) -> None:
    await asyncio.Event().wait()


async def refuse(**_: Any) -> AsyncIterator[Any]:
    raise REFUSED
    yield


def test_the_other_watches_end_before_the_error_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kopf then closes its connections; a watch that is still there would ask for others in vain."""
    kopf_patches, ended = _reload(monkeypatch), []

    async def watch(*, resource: Resource, **_: Any) -> None:
        if resource == PODS:
            raise REFUSED
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)  # it ends its workers
            ended.append(resource)

    async def scene() -> None:
        insights = Insights()
        given = {"identity": "", "processor": forever, "operator_paused": ToggleSet(any)}
        running = orchestration.orchestrator(insights=insights, settings=kopf_patches.kopf.OperatorSettings(), **given)
        task = asyncio.create_task(running)
        await asyncio.sleep(0)
        async with insights.revised:
            insights.namespaces.add("default")
            insights.watched_resources.update({PODS, JOBS})
            insights.revised.notify_all()
        with pytest.raises(APIForbiddenError):
            await asyncio.wait_for(task, 10)
        assert ended == [JOBS]

    monkeypatch.setattr(queueing, "watcher", watch)
    asyncio.run(scene())


def test_the_log_says_that_a_watch_broke_and_resumes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each list after the first."""

    async def breaks_twice(**_: Any) -> AsyncIterator[Any]:
        for version in "123":
            yield watching.Bookmark.LISTED
            yield {"type": "ADDED", "object": version}

    monkeypatch.setattr(watching, "infinite_watch", breaks_twice)
    _reload(monkeypatch)

    async def watched() -> list[Any]:
        return [event async for event in watching.infinite_watch(resource="pods")]

    assert len(asyncio.run(watched())) == 6
    assert caplog.messages == ["the watch of pods broke; it resumes after a new list"] * 2


def test_a_refused_watch_of_one_namespace_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits alone, counts as listed meanwhile, and resumes alone; a metric and a line of the log name it."""
    attempts = {"gone": 0, "well": 0}

    async def stream(*, namespace: str, **_: Any) -> AsyncIterator[Any]:
        attempts[namespace] += 1
        if namespace == "gone" and attempts[namespace] == 1:
            raise REFUSED
        if namespace == "gone" and attempts[namespace] == 2:
            raise watching.WatchingError("etcd is away")
        yield watching.Bookmark.LISTED
        yield {"type": "ADDED", "object": namespace}

    monkeypatch.setattr(watching, "infinite_watch", stream)
    kopf_patches = _reload(monkeypatch)
    monkeypatch.setattr(kopf_patches, "backoff_seconds", lambda failures: failures / 1000)
    metrics = OperatorMetrics()
    blind: list[bool] = []

    async def watched(namespace: str) -> list[Any]:
        watches = kopf_patches.new_watches(metrics.watch_broken)
        events = []
        async for event in watching.infinite_watch(resource=PODS, namespace=namespace):
            blind.append(watches.is_blind("gone"))
            events.append(event if event is watching.Bookmark.LISTED else event["object"])
        assert not watches.is_blind(namespace)
        return events

    listed = watching.Bookmark.LISTED
    assert asyncio.run(watched("gone")) == [listed, listed, "gone"]
    assert blind == [True, False, False]
    assert asyncio.run(watched("well")) == [listed, "well"]
    assert attempts == {"gone": 3, "well": 1}
    why = "the watch of pods in the namespace gone: "
    assert caplog.messages == [
        f"{why}the API server answers 403: forbidden; {kopf_patches.REMEDY}; retrying in 0.001 s",
        f"{why}etcd is away; retrying in 0.002 s",
    ]
    labels = {"watched_namespace": "gone", "resource": "pods"}
    assert metrics.registry.get_sample_value("batchgrowth_operator_watch_broken", labels) == 0
    metrics.watch_broken("gone", "pods", is_broken=True)
    assert metrics.registry.get_sample_value("batchgrowth_operator_watch_broken", labels) == 1
    metrics.forget_all()
    assert metrics.registry.get_sample_value("batchgrowth_operator_watch_broken", labels) is None


def test_a_namespace_without_an_answer_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts as listed after a while, its jobs are not decided on, and it resumes when its list comes."""

    async def scene() -> None:
        answer = asyncio.Event()

        async def stream(**_: Any) -> AsyncIterator[Any]:
            await answer.wait()
            yield {"type": None, "object": "slow"}
            yield watching.Bookmark.LISTED

        monkeypatch.setattr(watching, "infinite_watch", stream)
        kopf_patches = _reload(monkeypatch)
        monkeypatch.setattr(kopf_patches, "FIRST_LIST_SECONDS", 0.01)
        watches = kopf_patches.new_watches()
        events = watching.infinite_watch(resource=PODS, namespace="slow")
        assert await anext(events) is watching.Bookmark.LISTED
        assert watches.is_blind("slow")
        answer.set()
        assert (await anext(events))["object"] == "slow"
        assert watches.is_blind("slow")  # until all of the list has come
        assert await anext(events) is watching.Bookmark.LISTED
        assert not watches.is_blind("slow")

    asyncio.run(scene())
    assert caplog.messages == [
        "the watch of pods in the namespace slow: the API server has sent no list in 0.01 s; it still waits"
    ]


def test_a_watch_that_ends_without_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when kopf shuts down before the first list has come."""

    async def stream(**_: Any) -> AsyncIterator[Any]:
        return
        yield

    async def watched() -> list[Any]:
        return [event async for event in watching.infinite_watch(resource=PODS, namespace="default")]

    monkeypatch.setattr(watching, "infinite_watch", stream)
    _reload(monkeypatch)
    assert asyncio.run(watched()) == []


def test_a_watch_without_an_answer_ends_when_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left behind, before and after it counts as listed."""
    open_streams: list[str] = []

    async def stream(**_: Any) -> AsyncIterator[Any]:
        open_streams.append("open")
        try:
            await asyncio.Event().wait()
        finally:
            open_streams.pop()
        yield

    async def scene(seconds: float) -> None:
        monkeypatch.setattr(watching, "infinite_watch", stream)
        kopf_patches = _reload(monkeypatch)
        monkeypatch.setattr(kopf_patches, "FIRST_LIST_SECONDS", seconds)
        kopf_patches.new_watches()
        arrived: list[Any] = []

        async def watched() -> None:
            async for event in watching.infinite_watch(resource=PODS, namespace="slow"):
                arrived.append(event)  # noqa: PERF401  (it never ends)

        task = asyncio.create_task(watched())
        await asyncio.sleep(0.1)
        assert open_streams == ["open"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not open_streams
        assert arrived == ([watching.Bookmark.LISTED] if seconds < 0.1 else [])

    asyncio.run(scene(0.01))
    asyncio.run(scene(60))


@pytest.mark.parametrize(("namespace", "status"), [(None, 403), ("default", 404)])
def test_a_refused_watch_that_concerns_all_namespaces(
    monkeypatch: pytest.MonkeyPatch, namespace: str | None, status: int
) -> None:
    """The operator starts over: the right to watch everywhere is missing, or the kind itself is.

    Until then a metric names the watch.
    """

    async def stream(**_: Any) -> AsyncIterator[Any]:
        raise APIError({"message": "no"}, status=status, headers={})
        yield

    monkeypatch.setattr(watching, "infinite_watch", stream)
    kopf_patches = _reload(monkeypatch)
    metrics = OperatorMetrics()

    async def watched() -> None:
        kopf_patches.new_watches(metrics.watch_broken)
        async for _ in watching.infinite_watch(resource=PODS, namespace=namespace):
            pass

    with pytest.raises(APIError):
        asyncio.run(watched())
    labels = {"watched_namespace": namespace or "", "resource": "pods"}
    assert metrics.registry.get_sample_value("batchgrowth_operator_watch_broken", labels) == 1


def test_a_refused_watch_that_kopf_does_without_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rights in one namespace only, the operator may not watch CRDs and namespaces, and works."""

    async def stream(**_: Any) -> AsyncIterator[Any]:
        raise REFUSED
        yield

    monkeypatch.setattr(watching, "infinite_watch", stream)
    kopf_patches = _reload(monkeypatch)
    reported: list[Any] = []

    async def watched(resource: Any) -> None:
        kopf_patches.new_watches(lambda *given: reported.append(given))
        async for _ in watching.infinite_watch(resource=resource, namespace=None):
            pass

    for resource in (NAMESPACES, SimpleNamespace(plural="customresourcedefinitions")):
        with pytest.raises(APIForbiddenError):
            asyncio.run(watched(resource))
    assert reported == []


def test_a_watch_ends_if_every_task_is_cancelled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among them are those that kopf would have taken for a pause, after which a watch starts over."""
    kopf_patches, asked = _reload(monkeypatch), []

    async def list_none(**_: Any) -> AsyncIterator[Any]:
        yield [], "1"

    async def ask(**given: Any) -> None:
        asked.append(given["url"])
        await forever()

    async def watch() -> None:
        given = {"settings": kopf_patches.kopf.OperatorSettings(), "resource": PODS, "namespace": "default"}
        async for _ in watching.infinite_watch(operator_paused=ToggleSet(any), **given):
            pass

    async def scene() -> None:
        running = asyncio.create_task(watch())
        while not asked:
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        done, _ = await asyncio.wait({running}, timeout=1)
        assert {running} == done
        assert running.cancelled()

    monkeypatch.setattr(fetching, "fetch_objs", list_none)
    monkeypatch.setattr(api, "request", ask)
    asyncio.run(scene())


async def observing_namespaces(settings: Any) -> tuple[Insights, asyncio.Task[Any]]:
    """Starts kopf's watch of namespaces for an operator that was given one."""
    insights = Insights()
    await insights.backbone.fill(resources=[NAMESPACES])
    observing = observation.namespace_observer(
        clusterwide=False, namespaces=["default"], insights=insights, settings=settings
    )
    return insights, asyncio.create_task(observing)


@pytest.mark.fault("B11")
def test_a_shutdown_during_the_refusal_of_the_watch_of_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two watches are refused at once: the one ends the operator while the other is about to be done without."""
    kopf_patches, ends = _reload(monkeypatch), asyncio.Event()

    async def deplete(**_: Any) -> None:
        ends.set()
        await asyncio.sleep(0.05)

    async def scene() -> None:
        insights, task = await observing_namespaces(kopf_patches.kopf.OperatorSettings())
        await ends.wait()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=1)
        assert {task} == done
        assert task.cancelled()
        assert insights.namespaces == {"default"}

    monkeypatch.setattr(fetching, "fetch_objs", refuse)
    monkeypatch.setattr(watching, "infinite_watch", refuse)
    monkeypatch.setattr(queueing, "_wait_for_depletion", deplete)
    asyncio.run(scene())


def test_a_refusal_of_the_watch_of_namespaces_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator goes on with the namespaces that it was given."""
    kopf_patches = _reload(monkeypatch)

    async def scene() -> None:
        insights, task = await observing_namespaces(kopf_patches.kopf.OperatorSettings())
        async with asyncio.timeout(10):
            while "Not enough permissions to watch for namespaces" not in caplog.text:
                await asyncio.sleep(0.01)
        assert not task.done()
        assert insights.namespaces == {"default"}

    monkeypatch.setattr(fetching, "fetch_objs", refuse)
    monkeypatch.setattr(watching, "infinite_watch", refuse)
    asyncio.run(scene())
