"""Where progress reports go, a file or the one ConfigMap that a trainer's pod may patch, and how starts are numbered.

A start has the number after that of the newest report there, so no clock is asked: a trainer on a node whose clock is
behind supersedes its predecessor all the same. In the ConfigMap it claims that number, and reports nothing once a later
start has claimed it.

A trainer's pod asks the API server for nothing else. Its requests go around any proxy in the pod's environment, as
those of the operator do (batchgrowth_operator/api/client.py).
"""

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from batchgrowth.contract.progress import LARGEST_START, Progress
from batchgrowth.errors import ClusterError, Interrupted, Superseded
from batchgrowth.manifest.files import read_regular
from batchgrowth.names import LAST_START, PROGRESS_KEY, START_KEY

from batchgrowth_trainer.record.storage import replace_file
from batchgrowth_trainer.worker.addresses import bracketed

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_SECONDS = 10
_UNPROCESSABLE = 422
_LONGEST_MESSAGE = 4096  # bytes of a termination message
_MOST_DIGITS = len(str(LARGEST_START))
_PATIENCE_SECONDS = 120.0
_RETRY_SECONDS = 1.0  # for the number of a start

Deliver = Callable[[str], None]
"""Delivers a report, a JSON document. Raises OSError if it cannot now, Superseded if a later start reports."""
CountStart = Callable[[], int]
"""The number of this start, from the reports of earlier ones. Raises OSError if it cannot read them now."""


def to_file(path: Path) -> tuple[Deliver, CountStart]:
    """Return two functions: one replaces the file by a report, atomically; one numbers the start from that file."""

    def write(report: str) -> None:
        replace_file(path, f"{report}\n".encode(), durable=False)

    def count_start() -> int:
        try:
            return _next_start(_start_of(read_regular(path).decode(errors="replace")))
        except FileNotFoundError:
            return 0

    return write, count_start


def to_config_map(
    namespace: str, name: str, environment: Mapping[str, str] = os.environ, account: Path = _ACCOUNT
) -> tuple[Deliver, CountStart]:
    """Return two functions that act as the pod's service account: one patches a ConfigMap with a report, one numbers
    the start.

    The number comes from the ConfigMap's report and claim, and from the operator's annotation on it. The second
    function claims the number, once; the first then reports only while no later start has claimed the ConfigMap. Both
    read the token and the authority for each request, since the kubelet replaces them. Errors of the API server are
    OSErrors.
    """
    host = environment["KUBERNETES_SERVICE_HOST"]
    port = environment["KUBERNETES_SERVICE_PORT"]
    url = f"https://{bracketed(host)}:{port}/api/v1/namespaces/{namespace}/configmaps/{name}"

    def answer(method: str, body: Any = None, kind: str = "merge-patch") -> bytes:
        token = (account / "token").read_text().strip()
        https = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(account / "ca.crt")))
        # A proxy in the environment is for what is outside of the cluster.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": f"application/{kind}+json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, method=method, data=data, headers=headers)
        try:
            with direct.open(request, timeout=_TIMEOUT_SECONDS) as response:
                return bytes(response.read())
        except http.client.HTTPException as error:  # urllib makes OSErrors of every other failure
            raise OSError(f"the API server's answer is cut off, or no HTTP: {error!r}") from error

    claims = _Claims(answer)
    return claims.report, claims.make


def repeat(report: str, path: Path) -> None:
    """Write the last report where the kubelet reads a container's termination message, which the pod's status keeps.

    The operator finds it there if it did not reach the ConfigMap. Does nothing outside of a pod, which has no such
    file, or if the report is longer than the kubelet reads.
    """
    text = report.encode()
    if path.is_file() and len(text) <= _LONGEST_MESSAGE:
        with suppress(OSError):
            path.write_bytes(text)


def numbered(count_start: CountStart, stop_requested: Callable[[], bool], patience: float = _PATIENCE_SECONDS) -> int:
    """Return the number of this start. A trainer must not train without one, because another start may be training.

    Raises ClusterError if the number cannot be had within `patience` seconds, and Interrupted if a stop is requested.
    """
    ends = time.monotonic() + patience
    while not stop_requested():
        try:
            return count_start()
        except OSError as error:
            if time.monotonic() > ends:
                raise ClusterError(
                    f"the API server does not number this start of the trainer ({error}); check that the job's pods "
                    "may connect to it, and that the progress ConfigMap is there"
                ) from error
        time.sleep(_RETRY_SECONDS)
    raise Interrupted("stopped before the first update; there is nothing to resume")


class _Claims:
    """The claim of one start on the ConfigMap; `answer` sends a request and returns the response."""

    def __init__(self, answer: Callable[..., bytes]) -> None:
        self._answer = answer
        self._start: int | None = None

    def make(self) -> int:
        """Return the number of this start, and claim it at the first call. Raises OSError if another start claims it
        first.
        """
        if self._start is None:
            config_map = self._read()
            number = _next_start(_newest(config_map))
            self._write(config_map, number)
            self._start = number
        return self._start

    def report(self, text: str) -> None:
        """Write the report in one request, which the API server answers by 422 if the claim is lost."""
        held = {"op": "test", "path": f"/data/{START_KEY}", "value": str(self.make())}
        put = {"op": "add", "path": f"/data/{PROGRESS_KEY}", "value": text}
        try:
            self._answer("PATCH", [held, put], "json-patch")
        except urllib.error.HTTPError as error:
            if error.code != _UNPROCESSABLE:
                raise
            self._claim_again()
            self._answer("PATCH", [held, put], "json-patch")

    def _claim_again(self) -> None:
        """Restore the claim in a ConfigMap that was made again. Raises Superseded if a later start has claimed it."""
        config_map = self._read()
        mine = self.make()
        held = _newest(config_map)
        if held > mine:
            raise Superseded(f"start {held} of the trainer reports for the job; this one, start {mine}, ends")
        self._write(config_map, mine)

    def _read(self) -> dict[str, Any]:
        try:
            config_map = json.loads(self._answer("GET"))
            return {"metadata": config_map["metadata"], "data": config_map.get("data") or {}}
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"not a ConfigMap: {error}") from error

    def _write(self, config_map: Mapping[str, Any], number: int) -> None:
        version = {"resourceVersion": config_map["metadata"].get("resourceVersion")}
        self._answer("PATCH", {"metadata": version, "data": {START_KEY: str(number)}})


def _newest(config_map: Mapping[str, Any]) -> int:
    """Return the number of the newest start that the ConfigMap records, or -1."""
    data = config_map["data"]
    annotations = config_map["metadata"].get("annotations") or {}
    numbers = (data.get(START_KEY, ""), annotations.get(LAST_START, ""))
    known = (int(number) for number in numbers if number.isdecimal() and len(number) <= _MOST_DIGITS)
    return max(_start_of(data.get(PROGRESS_KEY, "")), *(one for one in known if one <= LARGEST_START), -1)


def _start_of(report: str) -> int:
    """Return the start number in the report, or -1 if the report is invalid."""
    try:
        start = Progress.from_json(report).start
    except ValueError:
        return -1
    return start if 0 <= start <= LARGEST_START else -1


def _next_start(start: int) -> int:
    return min(start + 1, LARGEST_START)
