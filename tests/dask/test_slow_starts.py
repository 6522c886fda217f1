"""A local cluster that ends while its workers start, which takes long on a busy machine."""

import subprocess
import sys
from pathlib import Path

import pytest

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"
PROGRAM = """
import asyncio, os, signal, sys, time
from multiprocessing import forkserver
from pathlib import Path
from batchgrowth.manifest.reading import load_manifest
from batchgrowth_trainer.pool import local_cluster
from distributed.core import Status

def is_starting(nanny):
    return nanny.process is not None and nanny.process.status == Status.starting

local_cluster._CLOSE_SECONDS = 1.0
with local_cluster.local_cluster(load_manifest(Path(sys.argv[1])).spec) as cluster:
    server = vars(forkserver)["_forkserver"]._forkserver_pid
    os.kill(server, signal.SIGSTOP)
    cluster.scale(1)
    while not any(map(is_starting, list(cluster._created))):
        time.sleep(0.05)
    time.sleep(0.5)  # the request is in the server's socket
    cluster.end()
    [nanny] = cluster._created
    assert nanny.pid is None
    assert nanny.process.process._keep_child_alive.closed  # else it lives until it gives the scheduler up, or for ever
    closing = asyncio.run_coroutine_threadsafe(cluster.scheduler.close(), cluster.loop.asyncio_loop)
    closing.result(20)  # so the worker of that process waits for a scheduler without end
    os.kill(server, signal.SIGCONT)
    time.sleep(2)  # now the process is there
print("over")
"""


@pytest.mark.fault("G01")
def test_a_process_that_starts_after_the_end() -> None:
    """No nanny tells it to end, and multiprocessing waits for it at the exit of this process: it ends by itself."""
    program = [sys.executable, "-c", PROGRAM, str(DIGITS)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "over\n"
