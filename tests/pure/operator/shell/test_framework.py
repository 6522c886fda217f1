"""What is loaded with kopf, and that it comes to an end."""

import asyncio
import importlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest
from kopf._cogs.aiokits.aiotasks import Scheduler
from kopf._cogs.aiokits.aiotoggles import Toggle, ToggleSet
from kopf._core.reactor import observation


def test_a_client_that_nobody_uses_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is hidden from kopf alone; whoever else wants it finds it."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("kopf", "kubernetes_asyncio")]:
        monkeypatch.delitem(sys.modules, name)

    framework = _load_anew(monkeypatch)

    assert "kubernetes_asyncio" not in sys.modules
    assert callable(framework.kopf.operator)


def test_a_client_that_is_loaded_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("kubernetes_asyncio")
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", theirs)

    _load_anew(monkeypatch)

    assert theirs is sys.modules["kubernetes_asyncio"]


def _load_anew(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delitem(sys.modules, "batchgrowth_operator.shell.framework", raising=False)
    return importlib.import_module("batchgrowth_operator.shell.framework")


def test_a_scheduler_whose_own_tasks_are_cancelled_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where watching fails: kopf cancels whatever runs, and who is told that work is done is among that."""
    _load_anew(monkeypatch)
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)  # it does not end in the moment in which it is cancelled
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

    assert [True] == ended


def test_many_objects_are_indexed_without_waking_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits until all are seen, and looks then: not once for each of the others."""
    _load_anew(monkeypatch)
    objects, looks, went_on = 200, 0, 0

    def all_of(states: Iterable[bool]) -> bool:
        nonlocal looks
        looks += 1
        return all(states)

    async def worker(toggles: ToggleSet, toggle: Toggle) -> None:
        nonlocal went_on
        await toggles.drop_toggle(toggle)
        await toggles.wait_for(True)
        went_on += 1

    async def scene() -> None:
        toggles = ToggleSet(all_of)
        listing = await toggles.make_toggle(name="listing")
        workers = []
        for _ in range(objects):
            workers.append(asyncio.create_task(worker(toggles, await toggles.make_toggle())))
            await asyncio.sleep(0.001)
        assert 0 == went_on
        await toggles.drop_toggle(listing)
        async with asyncio.timeout(10):
            await asyncio.gather(*workers)

    asyncio.run(scene())

    assert objects == went_on
    assert looks < 10 * objects


@pytest.mark.parametrize(
    ("event", "presses", "looks"), [("ADDED", False, 3), ("DELETED", False, 3), ("ADDED", True, 1), (None, False, 1)]
)
def test_kinds_are_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, event: str | None, presses: bool, looks: int
) -> None:
    """Where a definition came or went, unless the next such event is here; not for those that kopf has just listed."""
    framework, looked = _load_anew(monkeypatch), []

    async def look(**given: Any) -> None:
        looked.append(given["raw_event"]["type"])

    async def scene() -> None:
        pressure = asyncio.Event()
        if presses:
            pressure.set()
        await observation.process_discovered_resource_event(
            raw_event={"type": event, "object": {}}, stream_pressure=pressure
        )

    monkeypatch.setattr(framework, "_look_at_kinds_once", look)
    monkeypatch.setattr(framework, "LOOK_AGAIN_SECONDS", (0.001, 0.001))
    asyncio.run(scene())

    assert [event] * looks == looked
