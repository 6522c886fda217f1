"""What is loaded with kopf, and that it comes to an end."""

import asyncio
import importlib
import sys
from types import ModuleType

import pytest
from kopf._cogs.aiokits.aiotasks import Scheduler


def test_a_client_that_nobody_uses_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is hidden from kopf alone; whoever else wants it finds it."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("kopf", "kubernetes_asyncio")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "batchgrowth_operator.framework", raising=False)

    framework = importlib.import_module("batchgrowth_operator.framework")

    assert "kubernetes_asyncio" not in sys.modules
    assert callable(framework.kopf.operator)


def test_a_client_that_is_loaded_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("kubernetes_asyncio")
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", theirs)
    monkeypatch.delitem(sys.modules, "batchgrowth_operator.framework", raising=False)

    importlib.import_module("batchgrowth_operator.framework")

    assert theirs is sys.modules["kubernetes_asyncio"]


def test_a_scheduler_whose_own_tasks_are_cancelled_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where watching fails: kopf cancels whatever runs, and who is told that work is done is among that."""
    monkeypatch.delitem(sys.modules, "batchgrowth_operator.framework", raising=False)
    importlib.import_module("batchgrowth_operator.framework")
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
