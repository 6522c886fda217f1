"""Importing this makes the process ignore Ctrl-C: preloaded by the server that forks the workers.

A terminal sends Ctrl-C to the workers too, but only the driver acts on it; the workers finish their update.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
