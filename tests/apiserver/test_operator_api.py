"""The operator's client and a server that does not answer."""

from __future__ import annotations

import pytest
from batchgrowth_operator.server.api import Api
from kubernetes import client

from cluster.ports import free_ports


def test_a_server_that_does_not_answer_is_an_os_error() -> None:
    """Callers retry after an OSError."""
    nobody = client.Configuration()
    nobody.host, nobody.retries = f"http://127.0.0.1:{free_ports(1)[0]}", False
    api = Api(client.ApiClient(nobody), lambda *_: None)

    with pytest.raises(ConnectionError, match="get /api/v1/namespaces/default/pods"):
        api.list_of("Pod", "default")
    with pytest.raises(ConnectionError):
        next(iter(api.listed("Pod", "", None)))
    with pytest.raises(ConnectionError):
        api.get_lease("default", "operators")
