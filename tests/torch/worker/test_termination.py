"""How the process of a worker ends that has left."""

import subprocess
import sys

from batchgrowth_operator.children import dask_cluster
from batchgrowth_trainer.worker import termination

CODE = """
import asyncio, signal, threading, time, torch
from batchgrowth_trainer.worker.termination import Termination

def train():
    weights = torch.randn(300, 300, requires_grad=True)
    while True:
        (weights @ weights).sum().backward()

async def leave():
    signal.signal(signal.SIGTERM, lambda *_: None)  # Dask's own
    left = Termination({}, lambda worker: None, lambda: None)
    left.install(None)
    left.close()

asyncio.run(leave())
threading.Thread(target=train, daemon=True).start()
time.sleep(0.5)
print("the end", end="")
"""


def test_a_thread_that_trains_on_does_not_abort_the_process() -> None:
    """When Dask has closed the worker, an update may be under way; finalizing the interpreter then ends in SIGABRT."""
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stdout) == (0, "the end"), ended.stderr


def test_a_worker_that_leaves_ends_before_the_kubelet_kills_it() -> None:
    """Even if its driver acknowledges at the last moment, never releases it, and Dask does not close in time."""
    longest = termination.ACKNOWLEDGE_SECONDS + termination.GRACE_SECONDS + termination.CLOSE_SECONDS
    assert longest < dask_cluster.GRACE_SECONDS
