"""A request that no API server has answered, or not to the end: the operator retries it, and blames nobody."""

import io
from collections.abc import Callable
from http.client import IncompleteRead
from typing import Any

import pytest
from batchgrowth_operator.api.client import Api
from batchgrowth_operator.seen.observed import Ref
from kubernetes import client
from urllib3 import HTTPResponse
from urllib3.exceptions import SSLError


def handshake_fails(*_: Any, **__: Any) -> HTTPResponse:
    raise SSLError("certificate verify failed")


class CutOff(io.BytesIO):
    """The body of an answer whose connection ends before it."""

    def read(self, *_: Any) -> bytes:
        raise IncompleteRead(b"{")


def answers(body: io.BytesIO) -> Callable[..., HTTPResponse]:
    return lambda *_, **__: HTTPResponse(body, status=200, preload_content=False)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (handshake_fails, r"SSLError certificate verify failed$"),
        (answers(CutOff()), "IncompleteRead"),
        (answers(io.BytesIO(b"<html>Sign in</html>")), "the answer is not JSON"),
    ],
    ids=["TLS", "cut off", "a proxy"],
)
def test_what_is_no_answer_is_a_connection_error(
    monkeypatch: pytest.MonkeyPatch, request_: Callable[..., HTTPResponse], told: str
) -> None:
    connection = client.ApiClient(client.Configuration())
    api = Api(connection, lambda *_: None)
    monkeypatch.setattr(connection.rest_client.pool_manager, "request", request_)

    with pytest.raises(ConnectionError, match=rf"^get /api/v1/namespaces/x/configmaps/x-plan: .*{told}"):
        api.get(Ref("ConfigMap", "x-plan"), "x")
