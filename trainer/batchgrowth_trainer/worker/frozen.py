"""Importing this makes the garbage collector leave alone what exists: preloaded last by the server that forks workers.

What was imported is never garbage, and a collection writes into each object that it looks at: in a forked process, into
memory that it shared until then.
"""

import gc

gc.freeze()
