"""The sweep finds changes that watches missed, with the paged lists of a real API server."""

from __future__ import annotations

import asyncio

import pytest
from batchgrowth_operator.api import cache, client
from batchgrowth_operator.api.cache import Key, Store, Sweep
from batchgrowth_operator.api.client import JOBS, WATCHED
from batchgrowth_operator.seen.observed import Ref, ref_of
from operator_field import JOB, KEPT, PLAN, Field, until


@pytest.mark.fault("B06", "B07")
@pytest.mark.parametrize("everywhere", [False, True])
def test_everything_is_found_and_what_goes_is_missed(
    ground: Field, monkeypatch: pytest.MonkeyPatch, everywhere: bool
) -> None:
    monkeypatch.setattr(client, "PAGE", 2)
    monkeypatch.setattr(cache, "GRACE_SECONDS", 0.1)
    store, key, namespace = Store(), Key(ground.namespace, JOB.name), "" if everywhere else ground.namespace

    def sweep_all() -> set[Key]:
        sweeper = Sweep(ground.api, store)
        return {key for kind in JOBS | WATCHED for key in asyncio.run(sweeper.sweep(kind, namespace))}

    ground.apply(**KEPT)
    until(ground.is_complete)
    ground.rest()
    ground.stop()

    assert key in sweep_all()
    wanted = {ref_of(body) for body in ground.everything() if body is not None and body["kind"] != "Secret"}
    assert {ref for ref in store.refs(key) if ref.kind not in ("Pod", "Service")} == wanted
    assert key not in sweep_all()

    ground.delete(PLAN)
    assert {key} == {found for found in sweep_all() if found == key}
    assert Ref(PLAN.kind, PLAN.name) not in store.refs(key)
