"""What is logged where the API server refuses, and kopf has given up."""

import logging
from typing import Any

import pytest
from batchgrowth_operator.shell.refusals import RefusalFilter, refusal_message


class Answer(Exception):
    """As kopf raises it."""

    def __init__(self, status: int, message: str | None) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def record(name: str, text: str, error: Exception | None = None) -> logging.LogRecord:
    told: Any = (type(error), error, None) if error else None
    return logging.LogRecord(name, logging.ERROR, "file", 1, text, (), told)


def test_a_right_that_is_missing_is_named_with_what_would_do() -> None:
    said = refusal_message(Answer(403, 'pods is forbidden: User "x" cannot watch resource "pods"'))

    assert said is not None
    assert said.startswith('the API server answers 403: pods is forbidden: User "x" cannot watch resource "pods"; ')
    assert "the chart's roles" in said


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Answer(500, "etcd is away"), "the API server answers 500: etcd is away"),
        (Answer(429, None), "the API server answers 429: Answer"),
        (ValueError("ours"), None),
    ],
)
def test_other_answers_and_faults_of_our_own(error: Exception, expected: str | None) -> None:
    assert expected == refusal_message(error)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (record("kopf._core.reactor.running", "Watcher has failed", Answer(403, "no")), False),
        (record("kopf._cogs.clients.api", "Request attempt #1/7 failed: -> X('no', status=403)"), False),
        (record("kopf._cogs.clients.api", "Request attempt #1/7 failed: -> X('Connector is closed.')"), False),
        (record("kopf._cogs.clients.api", "Request attempt #1/7 failed: -> X('no', status=500)"), True),
        (record("kopf._core.reactor.running", "Watcher has failed", ValueError("ours")), True),
        (record("kopf._core.reactor.running", "Initial authentication has finished."), True),
        (record("batchgrowth_operator.shell.passes", "a pass failed", Answer(403, "no")), True),
    ],
)
def test_a_refusal_is_told_once(told: logging.LogRecord, expected: bool) -> None:
    assert expected == RefusalFilter().filter(told)
