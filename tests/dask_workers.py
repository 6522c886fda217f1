"""The Dask workers that a test has started."""

import psutil


def workers() -> list[psutil.Process]:
    """The live Dask workers of this process."""
    found = []
    for server in psutil.Process().children():
        for child in server.children():
            try:
                if child.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED):
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
    return found
