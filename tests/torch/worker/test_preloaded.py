"""A forked worker keeps sharing the memory of what was imported before."""

import json
import subprocess
import sys

import pytest

COLLECTED = """
import json
from multiprocessing import get_context
from batchgrowth_trainer.workers.local_cluster import PRELOADED

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
