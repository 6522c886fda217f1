"""Runs the operator in the process that runs this file, and ends it with SIGKILL right after its n-th write.

Started by tests with `runpy.run_path`, which gives the globals KUBECONFIG, NAMESPACE, WRITES (0: it lives) and
HOLDER (its name in the lease, empty for none).
"""

import os
import signal
from pathlib import Path
from typing import Any

from batchgrowth_operator import api
from batchgrowth_operator.__main__ import run
from batchgrowth_operator.settings import Place, Settings

given: dict[str, Any] = globals()


class Mortal(api.Api):
    """A client that is the death of its process."""

    writes = 0

    def _send(self, verb: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        answer = super()._send(verb, *arguments, **options)
        Mortal.writes += verb != "get"
        if verb != "get" and Mortal.writes == given["WRITES"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


api.Api = Mortal  # type: ignore[misc]
lease = Place(given["NAMESPACE"], "operators", given["HOLDER"]) if given["HOLDER"] else None
run(
    Settings(
        image="example/trainer:1",
        kubeconfig=Path(given["KUBECONFIG"]),
        namespaces=(given["NAMESPACE"],),
        lease=lease,
    )
)
