"""Where progress reports go, a file or the one ConfigMap that a trainer's pod may patch, and how starts are numbered.

A start has the number after that of the newest report there, so no clock is asked: a trainer on a node whose clock is
behind supersedes its predecessor all the same. In the ConfigMap it claims that number, and reports nothing once a later
start has claimed it.
"""

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

from batchgrowth.errors import ClusterError, Interrupted, Superseded
from batchgrowth.names import LAST_START, PROGRESS_KEY, START_KEY
from batchgrowth.progress import LARGEST_START, Progress

from batchgrowth_trainer.record.files import replace_file

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_SECONDS = 10
_UNPROCESSABLE = 422
_LONGEST_MESSAGE = 4096  # bytes of a termination message
_MOST_DIGITS = len(str(LARGEST_START))
_PATIENCE_SECONDS, _RETRY_SECONDS = 120.0, 1.0  # for the number of a start

Deliver = Callable[[str], None]
"""Delivers a report, a JSON document. Raises OSError if it cannot now, Superseded if a later start reports."""
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
    """Functions that patch a ConfigMap with a report, as the pod's service account, and that number the start by the
    ConfigMap's report and claim and the operator's annotation on it.

    The second claims the number, once; the first then reports only while no later start has claimed the ConfigMap.
    They read the token for each request, since the kubelet rotates it. Errors of the API server are OSErrors.
    """
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    url = f"https://{host}:{port}/api/v1/namespaces/{namespace}/configmaps/{name}"
    context = ssl.create_default_context(cafile=str(account / "ca.crt"))

    def answer(method: str, body: Any = None, kind: str = "merge-patch") -> bytes:
        token = (account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": f"application/{kind}+json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, method=method, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=context) as response:  # noqa: S310
            return bytes(response.read())

    claims = _Claims(answer)
    return claims.report, claims.make


def repeat(report: str, path: Path) -> None:
    """Write the last report where the kubelet reads a container's termination message, which the pod's status keeps.

    The operator finds it there if it does not arrive otherwise. Does nothing outside of a pod, where no such file is,
    or if the report is longer than the kubelet reads.
    """
    text = report.encode()
    if path.is_file() and len(text) <= _LONGEST_MESSAGE:
        with suppress(OSError):
            path.write_bytes(text)


def numbered(count_start: CountStart, stop_requested: Callable[[], bool], patience: float = _PATIENCE_SECONDS) -> int:
    """The number of this start, without which it may drive nothing: another one may.

    Raises ClusterError if it cannot be counted within `patience` seconds, and Interrupted if a stop is requested.
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
        """The number of this start, claimed at the first call. Raises OSError if another one claims at that moment."""
        if self._start is None:
            config_map = self._read()
            number = _after(_newest(config_map))
            self._write(config_map, number)
            self._start = number
        return self._start

    def report(self, text: str) -> None:
        """Report if the claim still holds, in one request; the API server answers 422 if it does not."""
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
        """Restore the claim in a ConfigMap that was lost and made again. Raises Superseded if a later start has it."""
        config_map, mine = self._read(), self.make()
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
    """The number of the newest start that the ConfigMap knows; -1 if it knows none."""
    data, annotations = config_map["data"], config_map["metadata"].get("annotations") or {}
    numbers = (data.get(START_KEY, ""), annotations.get(LAST_START, ""))
    known = (int(number) for number in numbers if number.isdecimal() and len(number) <= _MOST_DIGITS)
    return max(_start_of(data.get(PROGRESS_KEY, "")), *(one for one in known if one <= LARGEST_START), -1)


def _start_of(report: str) -> int:
    """The number of the start that a report is of; -1 if it is none that can be."""
    try:
        start = Progress.from_json(report).start
    except ValueError:
        return -1
    return start if 0 <= start <= LARGEST_START else -1


def _after(start: int) -> int:
    return min(start + 1, LARGEST_START)
