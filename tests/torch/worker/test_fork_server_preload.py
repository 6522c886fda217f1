"""A forked worker keeps sharing the memory of what was imported before."""

import json
import subprocess
import sys

import pytest

COLLECTED = """
import json
from multiprocessing import get_context
from batchgrowth_trainer.pool.local_cluster import PRELOADED

if __name__ == "__main__":
    forking = get_context("forkserver")
    forking.set_forkserver_preload([PRELOADED])
    with forking.Pool(1) as pool:
        look = "int(__import__('re').search('Private_Dirty: +([0-9]+)', open('/proc/self/smaps_rollup').read())[1])"
        print(json.dumps(pool.map(eval, [look, "__import__('gc').collect()", look], chunksize=1)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_collection_does_not_copy_what_was_imported() -> None:
    """Without that, a worker has 60 MiB more of its own after it."""
    done = subprocess.run([sys.executable, "-c", COLLECTED], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    before, _, after = json.loads(done.stdout)
    assert after - before < 8 << 10, "KiB"


SIGNALLED = """
import os, signal, sys
from multiprocessing import forkserver, get_context, resource_tracker
from batchgrowth_trainer.pool.local_cluster import PRELOADED
from batchgrowth_trainer.pool.local_cluster import start_fork_server

if __name__ == "__main__":
    start_fork_server(PRELOADED, {})
    helpers = (forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)
    for process in helpers:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(process, number)
    with get_context("forkserver").Pool(1) as pool:
        assert pool.apply(eval, ["6 * 7"]) == 42
    assert helpers == (forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
"""


@pytest.mark.fault("G01")
def test_what_starts_workers_outlives_signals_from_its_first_moment() -> None:
    """A terminal signals all processes of a run; an end of these two, or a traceback of theirs, would be told."""
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
