"""Where progress reports go, a file or the one ConfigMap that a trainer's pod may patch, and how starts are numbered.

A start has the number after that of the newest report there, so no clock is asked: a trainer on a node whose clock is
behind supersedes its predecessor all the same.
"""

import json
import os
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchgrowth.names import LAST_START, PROGRESS_KEY
from batchgrowth.progress import LARGEST_START, Progress

from batchgrowth_trainer.record.files import replace_file

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_SECONDS = 10

Deliver = Callable[[str], None]
"""Delivers a report, a JSON document. Raises OSError if it cannot now."""
CountStart = Callable[[], int]
"""The number of this start, from the reports of earlier ones. Raises OSError if it cannot read them now."""


def to_file(path: Path) -> tuple[Deliver, CountStart]:
    """Functions that replace the file with a report, atomically, and that number the start by the report in it."""

    def write(report: str) -> None:
        replace_file(path, f"{report}\n".encode(), durable=False)

    def count_start() -> int:
        try:
            return _after(_start_of(path.read_text(encoding="utf-8", errors="replace")))
        except FileNotFoundError:
            return 0

    return write, count_start


def to_config_map(
    namespace: str, name: str, environment: Mapping[str, str] = os.environ, account: Path = _ACCOUNT
) -> tuple[Deliver, CountStart]:
    """Functions that merge-patch a ConfigMap with a report, as the pod's service account, and that number the start by
    the ConfigMap's report and the operator's annotation on it.

    They read the token for each request, since the kubelet rotates it. Errors of the API server are OSErrors.
    """
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    url = f"https://{host}:{port}/api/v1/namespaces/{namespace}/configmaps/{name}"
    context = ssl.create_default_context(cafile=str(account / "ca.crt"))

    def answer(method: str, body: Any = None) -> bytes:
        token = (account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, method=method, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=context) as response:  # noqa: S310
            return bytes(response.read())

    def patch(report: str) -> None:
        answer("PATCH", {"data": {PROGRESS_KEY: report}})

    def count_start() -> int:
        try:
            config_map = json.loads(answer("GET"))
        except ValueError as error:
            raise OSError(f"not a ConfigMap: {error}") from error
        known = (config_map["metadata"].get("annotations") or {}).get(LAST_START, "")
        reported = _start_of((config_map.get("data") or {}).get(PROGRESS_KEY, ""))
        return _after(max(reported, int(known) if known.isdecimal() else -1))

    return patch, count_start


def _start_of(report: str) -> int:
    """The number of the start that a report is of; -1 if it is none that can be."""
    try:
        start = Progress.from_json(report).start
    except ValueError:
        return -1
    return start if 0 <= start <= LARGEST_START else -1


def _after(start: int) -> int:
    return min(start + 1, LARGEST_START)
