"""Leader election by the Lease."""

import asyncio
import copy
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from batchgrowth_operator.api import leader
from batchgrowth_operator.api.client import Refused
from batchgrowth_operator.api.leader import DURATION_SECONDS, Leadership, hold, lease_to_write
from batchgrowth_operator.loop.queue import MOST_CONCURRENT
from batchgrowth_operator.settings import LeaseLock

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
ME = LeaseLock("system", "batchgrowth", "me")


def held(by: str, version: str = "1", transitions: int = 3) -> dict[str, Any]:
    spec = {"holderIdentity": by, "leaseDurationSeconds": 15, "acquireTime": "then", "leaseTransitions": transitions}
    return {"metadata": {"name": "batchgrowth", "namespace": "system", "resourceVersion": version}, "spec": spec}


@pytest.mark.fault("B04", "B14")
@pytest.mark.parametrize(
    ("found", "unchanged", "expected"),
    [
        (None, 0, ("me", 0, "2026-11-20T10:00:00.000000Z")),
        (held("me"), 0, ("me", 3, "then")),
        (held("other"), 0, None),
        (held("other"), DURATION_SECONDS - 1, None),
        (held("other"), DURATION_SECONDS, ("me", 4, "2026-11-20T10:00:00.000000Z")),
        (held(""), 0, ("me", 4, "2026-11-20T10:00:00.000000Z")),
        ({"metadata": {}}, 0, ("me", 1, "2026-11-20T10:00:00.000000Z")),
    ],
)
def test_claims(found: Any, unchanged: float, expected: Any) -> None:
    wanted = lease_to_write(ME, found, unchanged, NOW)

    spec = wanted and wanted["spec"]
    assert (spec and (spec["holderIdentity"], spec["leaseTransitions"], spec["acquireTime"])) == expected


@pytest.mark.fault("B04")
def test_a_claim_carries_the_observed_resource_version() -> None:
    """If two operators claim at once, the API server refuses the second."""
    wanted = lease_to_write(ME, held("", "7"), 0, NOW)

    assert wanted is not None
    assert wanted["metadata"]["resourceVersion"] == "7"


class FakeApi:
    """An API server with one Lease; `script` is what happens before each read of it."""

    def __init__(self, *script: Any) -> None:
        self.script, self.lease = list(script), None

    def get_lease(self, namespace: str, name: str) -> Any:
        step = self.script.pop(0) if self.script else "other"
        if isinstance(step, Exception):
            raise step
        if step == "other":
            self.lease = held("other", str(len(self.script)))
        return copy.deepcopy(self.lease)

    def put_lease(self, wanted: Any) -> Any:
        self.lease = wanted
        return copy.deepcopy(wanted)


def attempt(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of `begin` until the lease was lost; from then on, nothing may be written."""
    calls: list[str] = []
    leadership = Leadership(needs_lease=True)
    monkeypatch.setattr(leader, "RENEW_SECONDS", 0)
    monkeypatch.setattr(leader, "RETRY_SECONDS", 0)
    asyncio.run(asyncio.wait_for(hold(api, ME, leadership, lambda: calls.append("began")), 10))  # type: ignore[arg-type]
    assert leadership.seconds_left <= 0
    return calls


def test_holding_and_losing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work begins once; failed requests do not end it, another holder in the lease does."""
    api = FakeApi("free", "mine", Refused(500, "no"), ConnectionRefusedError(), ValueError("odd"), "mine", "other")

    assert attempt(api, monkeypatch) == ["began"]
    assert api.script == []


def test_taking_over_an_expired_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "DURATION_SECONDS", 0)
    api = FakeApi("other", "same", "mine", "other")
    original = api.get_lease

    def short(namespace: str, name: str) -> Any:
        found = original(namespace, name)
        if found is not None and found["spec"]["holderIdentity"] == "other" and api.script:
            found["spec"]["leaseDurationSeconds"] = 0
        return found

    monkeypatch.setattr(api, "get_lease", short)

    assert attempt(api, monkeypatch) == ["began"]


def test_the_log_of_the_election(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Who leads, once for each holder; a renewal has no line."""
    caplog.set_level(logging.INFO, logger="batchgrowth_operator")
    api = FakeApi("other", "other", "free", "mine", ConnectionRefusedError("nobody there"), "mine", "other")
    original = api.get_lease

    def free(namespace: str, name: str) -> Any:
        if api.script and api.script[0] == "free":
            api.lease = None
        return original(namespace, name)

    monkeypatch.setattr(api, "get_lease", free)
    attempt(api, monkeypatch)

    assert caplog.messages == [
        "me waits for the lease system/batchgrowth, which other holds",
        "me acquired the lease system/batchgrowth and leads",
        "the lease system/batchgrowth: nobody there; retrying",
        "another operator, other, took the lease system/batchgrowth",
        "me lost the lease system/batchgrowth and ends",
    ]


def test_a_lease_that_cannot_be_renewed_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "LOST_AFTER_SECONDS", 0.01)
    api = FakeApi("free", *[ConnectionRefusedError()] * 100_000)

    assert attempt(api, monkeypatch) == ["began"]
    assert api.script, "the lease was lost before the API server answered again"


def test_a_request_that_hangs_is_over_before_the_tenure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operator may take the Lease 15 s after its last change, so the holder gives up before that."""
    monkeypatch.setattr(leader, "LOST_AFTER_SECONDS", 0.3)
    monkeypatch.setattr(leader, "LEASE_TIMEOUT_SECONDS", 0.1)
    let_go, leadership, lefts = threading.Event(), Leadership(needs_lease=True), list[float]()
    api = FakeApi("free")
    read = api.get_lease

    def hang(namespace: str, name: str) -> Any:
        if api.script:
            return read(namespace, name)
        let_go.wait(10)
        raise ConnectionRefusedError

    monkeypatch.setattr(api, "get_lease", hang)
    monkeypatch.setattr(leader, "RENEW_SECONDS", 0)
    monkeypatch.setattr(leader, "RETRY_SECONDS", 0)
    assert leadership.seconds_left < 0
    began = time.monotonic()
    asyncio.run(hold(api, ME, leadership, lambda: lefts.append(leadership.seconds_left)))  # type: ignore[arg-type]
    let_go.set()
    assert time.monotonic() - began < 5
    assert 0 < lefts[0] <= 0.3
    assert leadership.seconds_left <= 0


@pytest.mark.fault("B04")
def test_writes_that_hang_do_not_delay_a_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads of the passes are taken, and as many writes wait for one."""
    monkeypatch.setattr(leader, "RENEW_SECONDS", 0.01)
    let_go, leadership, api = threading.Event(), Leadership(needs_lease=True), FakeApi("free", *["mine"] * 20)
    hung = list[Any]()

    async def lead() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(MOST_CONCURRENT))

        def begin() -> None:
            hung.extend(loop.run_in_executor(None, let_go.wait, 10) for _ in range(2 * MOST_CONCURRENT))

        try:
            await hold(api, ME, leadership, begin)  # type: ignore[arg-type]
            assert not any(write.done() for write in hung)
        finally:
            let_go.set()

    asyncio.run(asyncio.wait_for(lead(), 9))
    assert len(hung) == 2 * MOST_CONCURRENT
    assert api.script == []


def test_a_tenure_without_a_lease_never_ends() -> None:
    assert Leadership(needs_lease=False).seconds_left == float("inf")
