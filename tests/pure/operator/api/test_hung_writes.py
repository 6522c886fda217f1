"""A write that hangs is over before another operator may lead."""

import math
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from batchgrowth_operator.api import leader
from batchgrowth_operator.api.apply import Writer
from batchgrowth_operator.api.cache import Store
from batchgrowth_operator.api.client import TIMEOUT_SECONDS, Api
from batchgrowth_operator.api.events import RETRY_SECONDS, EventPoster
from batchgrowth_operator.api.leader import Leadership, NotLeading, bounded
from batchgrowth_operator.job.announcements import Event
from batchgrowth_operator.job.reconcile import Writes
from batchgrowth_operator.seen.observed import Observed, Ref
from kubernetes import client

PLAN = Ref("ConfigMap", "digits-plan")
METADATA = {"name": PLAN.name, "namespace": "default", "uid": "its"}
CHILD = {"kind": PLAN.kind, "metadata": METADATA}


@pytest.fixture
def hung() -> Iterator[Api]:
    """A client of a server that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{server.getsockname()[1]}"
        configuration.retries = False
        yield Api(client.ApiClient(configuration), lambda *_: None)


@pytest.mark.fault("B04")
def test_a_write_that_hangs_ends_with_the_tenure(hung: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unbounded it would take twice as long as the Lease: another operator writes by then."""
    monkeypatch.setattr(leader, "LOST_AFTER_SECONDS", 0.2)
    leadership = Leadership(needs_lease=True)
    poster = EventPoster(hung, lambda: leadership.seconds_left)
    writer = Writer(hung, Store(), poster, poster.seconds_left)
    job = {"kind": "BatchGrowthJob", "metadata": METADATA | {"name": "digits", "resourceVersion": "1"}}
    seen = Observed(job=job, now=datetime.now(UTC), children={PLAN: CHILD})

    for decision in (
        Writes(status={}),
        Writes(apply=(CHILD,)),
        Writes(delete=(PLAN,)),
        Writes(delete_job=True),
    ):
        leadership.extend(time.monotonic())
        with pytest.raises(ConnectionError, match="timed out"):
            writer.carry_out(seen, decision)
        assert -TIMEOUT_SECONDS / 2 < leadership.seconds_left <= 0
        with pytest.raises(NotLeading):
            writer.carry_out(seen, decision)

    leadership.extend(time.monotonic())
    poster.record(seen, Event("Warning", "Stalled", "No update for a minute."))
    assert poster.post_next() == RETRY_SECONDS
    assert -TIMEOUT_SECONDS / 2 < leadership.seconds_left <= 0


def test_without_a_lease_a_write_has_its_own_timeout(hung: Api) -> None:
    assert bounded(hung, math.inf)._timeout_seconds == TIMEOUT_SECONDS
