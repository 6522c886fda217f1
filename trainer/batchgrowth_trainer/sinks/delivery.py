"""Where progress reports go: a file, or the one ConfigMap that a trainer's pod may patch."""

import json
import os
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from batchgrowth.names import PROGRESS_KEY

from batchgrowth_trainer.record.files import replace_file

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_SECONDS = 10

Deliver = Callable[[str], None]
"""Delivers a report, a JSON document. Raises OSError if it cannot now."""


def to_file(path: Path) -> Deliver:
    """A function that replaces the file with a report, atomically."""

    def write(report: str) -> None:
        replace_file(path, f"{report}\n".encode(), durable=False)

    return write


def to_config_map(
    namespace: str, name: str, environment: Mapping[str, str] = os.environ, account: Path = _ACCOUNT
) -> Deliver:
    """A function that merge-patches a ConfigMap with a report, as the pod's service account.

    It reads the token for each report, since the kubelet rotates it. Errors of the API server are OSErrors.
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
