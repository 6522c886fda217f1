"""The operator's client, a server that does not answer, and the time of day of one that does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from batchgrowth_operator.api.client import Api, connect
from kubernetes import client

from cluster.apiserver import ApiServer
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


@pytest.mark.fault("B14")
def test_the_time_of_day_is_the_server_s(apiserver: ApiServer) -> None:
    """Though the clock of the operator's machine was a day ahead when it started."""
    api = connect(apiserver.kubeconfig, lambda *_: None)
    api.clock._offset += timedelta(days=1).total_seconds()

    api.list_of("ConfigMap", "default")

    assert abs(api.clock.now() - datetime.now(UTC)) < timedelta(minutes=1)
