"""Bytes over the loopback interface, which all systems here talk over; in a network of its own where Linux lets us.

On the machine's own loopback interface everybody's traffic is counted. A private network namespace has an interface
that nobody else uses, so that what is counted is ours alone: payload, headers and acknowledgements.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence

import psutil

_MARK = "BATCHGROWTH_BENCH_NETWORK"
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1


def sent_bytes() -> int:
    """Bytes that the loopback interface has carried so far, headers included; each byte counts once."""
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    return int(next(counter.bytes_sent for name, counter in counters.items() if name.startswith("lo")))


def is_private() -> bool:
    """Whether this process has a loopback interface of its own."""
    return os.environ.get(_MARK) == "private"


def enter_private_network(module: str, arguments: Sequence[str]) -> None:
    """Start this program anew in a network namespace of its own and do not return; return where that cannot be."""
    if _MARK in os.environ:
        if is_private():
            _raise_loopback()
        return
    prefix = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        os.environ[_MARK] = "shared"
        return
    os.environ[_MARK] = "private"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of every address that has no name in here
    os.execvp(prefix[0], [*prefix, sys.executable, "-m", module, *arguments])


def _raise_loopback() -> None:
    """A new namespace's interface is down; struct ifreq of netdevice(7) sets its flags."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))
