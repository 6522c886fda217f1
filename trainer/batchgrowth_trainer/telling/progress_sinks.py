"""Where progress reports go: a file, or the one ConfigMap of Kubernetes that a trainer may patch."""

from __future__ import annotations

import json
import os
import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from batchgrowth.names import PROGRESS_KEY

from batchgrowth_trainer.record.files import replace_file
from batchgrowth_trainer.telling.reporting import Sink

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_SECONDS = 10


def file_sink(path: Path) -> Sink:
    """Reports replace each other in one file, each whole."""

    def write(report: str) -> None:
        replace_file(path, f"{report}\n".encode(), durable=False)

    return write


def config_map_sink(
    namespace: str, name: str, environment: Mapping[str, str] = os.environ, account: Path = _ACCOUNT
) -> Sink:
    """Reports replace each other in a ConfigMap, by merge patch, with the pod's own service account.

    The token is read anew each time, since the kubelet renews it. Errors of the API server are OSErrors here.
    """
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    url = f"https://{host}:{port}/api/v1/namespaces/{namespace}/configmaps/{name}"
    context = ssl.create_default_context(cafile=str(account / "ca.crt"))

    def patch(report: str) -> None:
        token = (account / "token").read_text().strip()
        request = urllib.request.Request(
            url,
            method="PATCH",
            data=json.dumps({"data": {PROGRESS_KEY: report}}).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=context):  # noqa: S310
            return

    return patch
