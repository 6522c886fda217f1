"""The log of a refusal of the API server that made kopf give up."""

import logging
from typing import Any

import pytest
from batchgrowth_operator.loop.kopf_patches import RefusalFilter, refusal_message


class Answer(Exception):
    """An error with the attributes of kopf's API errors."""

    def __init__(self, status: int, message: str | None) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def record(name: str, text: str, error: Exception | None = None) -> logging.LogRecord:
    exc_info: Any = (type(error), error, None) if error else None
    return logging.LogRecord(name, logging.ERROR, "file", 1, text, (), exc_info)


@pytest.mark.fault("B11")
def test_a_missing_permission_is_named_with_a_remedy() -> None:
    text = refusal_message(Answer(403, 'pods is forbidden: User "x" cannot watch resource "pods"'))

    assert text is not None
    assert text.startswith('the API server answers 403: pods is forbidden: User "x" cannot watch resource "pods"; ')
    assert "the chart's roles" in text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Answer(500, "etcd is away"), "the API server answers 500: etcd is away"),
        (Answer(429, None), "the API server answers 429: Answer"),
        (ValueError("ours"), None),
    ],
)
def test_other_responses_and_our_own_errors(error: Exception, expected: str | None) -> None:
    assert refusal_message(error) == expected


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        (record("kopf._core.reactor.running", "Watcher has failed", Answer(403, "no")), False),
        (record("kopf._cogs.clients.api", "Request attempt #1/7 failed: -> X('no', status=403)"), False),
        (record("kopf._cogs.clients.api", "Request attempt #1/7 failed: -> X('Connector is closed.')"), False),
        (record("kopf._cogs.clients.api", "Request attempt #1/7 failed: -> X('no', status=500)"), True),
        (record("kopf._core.reactor.running", "Watcher has failed", ValueError("ours")), True),
        (record("kopf._core.reactor.running", "Initial authentication has finished."), True),
        (record("batchgrowth_operator.loop.queue", "a pass failed", Answer(403, "no")), True),
    ],
)
def test_a_refusal_is_logged_once(logged: logging.LogRecord, expected: bool) -> None:
    assert RefusalFilter().filter(logged) == expected
