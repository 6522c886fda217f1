"""Imports for the server that forks a local cluster's workers, so that the workers share their memory."""

import gc
import os

from batchgrowth_trainer.worker.exits import end_on_signals, outlive_signals

# This comes before the other imports, which take seconds in which a signal to all processes would end the server. Other
# programs' processes may be forked from it as well, and `Pool.terminate` ends those by a signal.
outlive_signals()
os.register_at_fork(after_in_child=end_on_signals)

import dask  # noqa: E402

# Each worker receives the settings of its run, and reads none of the user's files when it begins.
dask.config.paths.clear()
dask.config.refresh()

from batchgrowth_trainer.worker import service  # noqa: E402, F401  (and with it torch)
from batchgrowth_trainer.worker.streams import let_streams_last  # noqa: E402

let_streams_last()

# Imported objects are never garbage, and a collection writes into each object that it looks at: in a forked process,
# into memory that the process shared until then.
gc.freeze()
