"""A webhook of others that nobody answers, so that the API server refuses each write of one kind.

What exists is still suspended and released, and the rest follows once the webhook is gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from batchgrowth_operator.api.client import EVENTS, KINDS, Refused
from batchgrowth_operator.seen.observed import Ref
from operator_field import CLUSTER, JOB, PLAN, TRAINER, WORKERS, Field, until

from cluster.apiserver import ApiServer

NOWHERE = "https://127.0.0.1:9/"
CONFIGURATION = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
Break = Callable[..., Callable[[], None]]


@pytest.fixture
def broken(apiserver: ApiServer, ground: Field) -> Iterator[Break]:
    """A function: updates of objects of that kind in this namespace are refused until what it returns is called."""
    name = f"others-{ground.namespace}"

    def mend() -> None:
        apiserver.kubectl("delete", "validatingwebhookconfiguration", name, "--ignore-not-found")

    def break_(ref: Ref, subresource: str = "") -> Callable[[], None]:
        kind = KINDS[ref.kind]
        resource = "/".join(filter(None, (kind.plural, subresource)))
        rule = {"apiGroups": [kind.group], "apiVersions": [kind.version], "resources": [resource]}
        webhook = {
            "name": "others.example.com",
            "clientConfig": {"url": NOWHERE},
            "rules": [{**rule, "operations": ["CREATE", "UPDATE"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ground.namespace}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        body = {**CONFIGURATION, "metadata": {"name": name}, "webhooks": [webhook]}
        applied = apiserver.kubectl("apply", "-f", "-", given=json.dumps(body))
        assert applied.returncode == 0, applied.stderr
        until(lambda: is_refused(ground, ref, subresource))
        return mend

    yield break_
    mend()


def is_refused(field: Field, ref: Ref, subresource: str) -> bool:
    """Whether a write that changes nothing is."""
    try:
        field.patch(ref, {}, subresource)
    except Refused:
        return True
    return False


def is_released(field: Field) -> bool:
    return (field.get(WORKERS), field.get(CLUSTER), field.get(TRAINER)["spec"]["suspend"]) == (None, None, True)


def message(field: Field, kind: str) -> str:
    [found] = [c["message"] for c in field.get(JOB)["status"]["conditions"] if c["type"] == kind]
    return str(found)


@pytest.mark.fault("B13")
def test_a_webhook_for_config_maps(ground: Field, broken: Break) -> None:
    """The plan of a suspended job cannot be written, which holds up nothing but what needs it."""
    ground.apply()
    until(ground.is_complete)
    ground.workers_come()
    mend = broken(PLAN)
    plan = ground.get(PLAN)["data"]

    ground.patch(JOB, {"spec": {"suspend": True, "workers": {"maximum": 3}}})
    until(lambda: is_released(ground))
    until(lambda: ground.condition("ClusterReady")[1], "ChildRefused")
    assert "others.example.com" in message(ground, "ClusterReady")
    assert plan == ground.get(PLAN)["data"]

    mend()
    until(lambda: ground.get(PLAN)["data"] != plan, seconds=60)
    ground.patch(JOB, {"spec": {"suspend": False}})
    until(ground.is_complete, seconds=60)


@pytest.mark.fault("B13")
def test_a_webhook_for_the_status(ground: Field, broken: Break) -> None:
    """An event says so, as the status cannot."""
    ground.apply()
    until(ground.is_complete)
    ground.workers_come()
    mend = broken(JOB, "status")

    ground.patch(JOB, {"spec": {"suspend": True}})
    until(lambda: is_released(ground))
    until(lambda: any("others.example.com" in event["message"] for event in events(ground, "StatusRefused")))
    assert ("True", "BySpec") != ground.condition("Suspended")

    mend()
    until(lambda: ground.condition("Suspended"), ("True", "BySpec"), seconds=60)


def events(field: Field, reason: str) -> list[dict[str, Any]]:
    found = field.api._send("get", EVENTS, EVENTS.path(field.namespace))["items"]
    return [event for event in found if event["reason"] == reason]
