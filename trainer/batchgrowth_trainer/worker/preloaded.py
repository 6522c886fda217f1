"""Imports for the server that forks a local cluster's workers, so that the workers share their memory."""

import gc
import signal

# A terminal sends Ctrl-C to the workers too, but only the driver acts on it; the workers finish their update. This
# comes first, since the imports take seconds in which Ctrl-C would end the server.
signal.signal(signal.SIGINT, signal.SIG_IGN)

from batchgrowth_trainer.worker import service  # noqa: E402, F401  (and with it torch)

# What was imported is never garbage, and a collection writes into each object that it looks at: in a forked process,
# into memory that it shared until then.
gc.freeze()
