"""The code under which a refused request is counted; an alert fires on some of them."""

import json
from typing import Any

import pytest
from batchgrowth_operator.api.client import Api, Refused
from batchgrowth_operator.seen.observed import Ref
from kubernetes import client
from kubernetes.dynamic.exceptions import api_exception


def refused(status: int, message: str) -> Any:
    """The error of kubernetes' client for that answer."""
    error = client.ApiException(status=status, reason="reason")
    error.body = json.dumps({"message": message})
    return api_exception(error)


@pytest.mark.fault("O19")
@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (403, 'configmaps "x-plan" is forbidden: exceeded quota: q', "403"),
        (422, "configmaps \"x-plan\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no", "422"),
        (
            403,
            'configmaps "x-plan" is forbidden: unable to create new content in namespace x because it is being '
            "terminated",
            "terminating",
        ),
    ],
    ids=["quota", "policy", "the end of a namespace"],
)
def test_a_refused_request_is_counted(monkeypatch: pytest.MonkeyPatch, status: int, message: str, code: str) -> None:
    """What is refused in a namespace that is being deleted has a code of its own, on which no alert fires."""
    counted: list[tuple[str, str, str]] = []
    api = Api(client.ApiClient(client.Configuration()), lambda *given: counted.append(given))

    def refuse(*_: Any, **__: Any) -> Any:
        raise refused(status, message)

    monkeypatch.setattr(api._dynamic, "request", refuse)

    with pytest.raises(Refused) as error:
        api.delete(Ref("ConfigMap", "x-plan"), "x", "uid", "Background")

    assert (error.value.code, str(error.value)) == (status, message)
    assert counted == [("delete", "configmaps", code)]
