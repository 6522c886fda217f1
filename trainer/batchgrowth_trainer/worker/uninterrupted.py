"""Importing this lets the process ignore Ctrl-C: preloaded by the server that forks the workers.

A terminal sends Ctrl-C to the workers too, but only the driver decides what it means: they finish their update.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
