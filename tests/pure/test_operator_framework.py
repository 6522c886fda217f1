"""What is loaded with kopf."""

import importlib
import sys
from types import ModuleType

import pytest


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
