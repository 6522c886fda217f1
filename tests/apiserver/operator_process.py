"""Runs the operator in the process that runs this file, and kills it with SIGKILL right after its n-th write.

Started by tests with `runpy.run_path`, which gives the globals KUBECONFIG, NAMESPACE, WRITES (0: it lives), HOLDER (its
name in the lease, empty for none), CALLS (a file for the method and URL of each request, empty for none), LOG (a file
for what it logs, empty for the terminal), METRICS_PORT (0 for none), OPERATOR_CLASS and IMAGE.
"""

import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import urllib3.connectionpool
from batchgrowth_operator.api import client
from batchgrowth_operator.process import run
from batchgrowth_operator.settings import Defaults, LeaseLock, Settings

given: dict[str, Any] = globals()
faulthandler.register(signal.SIGUSR1)


class Mortal(client.Api):
    """A client that kills its own process."""

    writes = 0

    def _send(self, verb: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        answer = super()._send(verb, *arguments, **options)
        Mortal.writes += verb != "get"
        if verb != "get" and Mortal.writes == given["WRITES"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def record(module: Any, name: str, url_at: int) -> None:
    """Logs the requests that pass through a client's method; `url_at` is the position of the URL argument."""
    send = getattr(module, name)

    def recorded(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        url = options["url"] if "url" in options else arguments[url_at]
        with Path(given["CALLS"]).open("a") as calls:
            calls.write(f"{method.upper()} {url}\n")
        return send(self, method, *arguments, **options)

    setattr(module, name, recorded)


if given["CALLS"]:
    record(aiohttp.ClientSession, "_request", 0)  # kopf's
    record(urllib3.connectionpool.HTTPConnectionPool, "urlopen", 0)  # ours
if given["LOG"]:
    os.dup2(os.open(given["LOG"], os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
client.Api = Mortal  # type: ignore[misc]
lease = LeaseLock(given["NAMESPACE"], "operators", given["HOLDER"]) if given["HOLDER"] else None
run(
    Settings(
        defaults=Defaults(image=given["IMAGE"]),
        kubeconfig=Path(given["KUBECONFIG"]),
        namespaces=(given["NAMESPACE"],),
        operator_class=given["OPERATOR_CLASS"],
        lease=lease,
        metrics_port=given["METRICS_PORT"],
    )
)
