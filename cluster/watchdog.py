"""Waits for the end of the process that started it, however that comes; then nothing of its servers is left.

It leads the process group that the servers are in. While its standard input is open, all is well.
Run by path, with nothing but the standard library, so that it stands within milliseconds.
"""

import os
import shutil
import signal
import sys


def main(folder: str) -> None:
    """Kills its own process group, itself included, and removes the folder, when standard input closes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdin.buffer.read()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
