"""Access to the API server: reads, writes, events and the lease. Besides, only kopf talks to it (loop/watch.py)."""
