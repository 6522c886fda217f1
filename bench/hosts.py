"""Hosts of their own on one machine: a network namespace each, connected by the emulator.

The namespaces have no name: each ends with the last process and descriptor that holds it, so none is left behind,
however this process ends. A program on a host is killed with the thread that started it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from batchgrowth.errors import BatchGrowthError

from bench import emulator
from bench.emulator import MTU, NETWORK, Counters, Link
from bench.loopback import raise_interface

ROOT = Path(__file__).parents[1]
PROGRAMS = "setpriv", "nsenter"
"""Of util-linux: they start a program on a host."""
_IF_STARTED_BY = '[ "$PPID" = "$0" ] && exec "$@"'
"""A process that has ended before `setpriv` asked for its signal sends none: its programs belong to another by now."""
_TUN, _DEVICE = "/dev/net/tun", b"tun0"
_QUEUE = 10_000
"""Packets that wait in a device for the emulator: it drops packets by its own queues, not because it is late."""
_CONGESTION_CONTROLS = "cubic", "reno"
"""The first that this machine permits: Linux's default, or else the one that all have, which slows down like it."""
_SYSCTL = Path("/proc/sys/net/ipv4")
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8922, 0x8943
_END_SECONDS = 10.0


def why_not() -> str:
    """Why hosts cannot be made here; empty if they can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} here"
    try:
        for descriptor in _made(f"{NETWORK}1"):
            os.close(descriptor)
    except (OSError, AttributeError) as error:  # there is no unshare() but on Linux
        return f"this process may not make a network namespace with a TUN device: {error}"
    return ""


@dataclass(frozen=True, slots=True)
class Host:
    """One host; `namespace` is an open descriptor of its network namespace."""

    address: str
    namespace: int

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program there, with these variables besides those of this process."""
        owned = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", _IF_STARTED_BY, str(os.getpid())]
        there = ["nsenter", f"--net=/proc/self/fd/{self.namespace}"]
        return subprocess.Popen(
            [*owned, *there, *command], env=os.environ | environment, pass_fds=[self.namespace], stdin=stdin,
            stdout=stdout, stderr=stderr, cwd=cwd,
        )  # fmt: skip


@dataclass(slots=True)
class Hosts:
    """A number of hosts; the context manager ends what was started by `run`, and then their network."""

    count: int
    hosts: list[Host] = field(default_factory=list)
    _emulator: subprocess.Popen[bytes] | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        """Raises BatchGrowthError if hosts cannot be made here."""
        if reason := why_not():
            raise BatchGrowthError(reason)
        with ExitStack() as taps, ExitStack() as opened:
            self._emulator = self._connected([self._add(number + 1, opened, taps) for number in range(self.count)])
            opened.callback(_ended, self._emulator)
            self._stack = opened.pop_all()
        return self

    def _add(self, number: int, opened: ExitStack, taps: ExitStack) -> int:
        """Add a host; a descriptor of its device, which only the emulator needs."""
        address = f"{NETWORK}{number}"
        namespace, tap = _made(address)
        taps.callback(os.close, tap)
        opened.callback(os.close, namespace)
        self.hosts.append(Host(address, namespace))
        return tap

    def _connected(self, taps: Sequence[int]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", emulator.__name__, ",".join(map(str, taps))],
            cwd=ROOT, pass_fds=taps, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def run(self, host: int, command: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        """Start a program on that host, which writes to the file `output`, until the hosts end."""
        with output.open("wb") as file:
            process = self.hosts[host].start(command, environment, stdout=file, stderr=subprocess.STDOUT)
        self.owns(process)

    def owns(self, process: subprocess.Popen[bytes]) -> None:
        """Kill this process before the network ends."""
        self._stack.callback(_ended, process)

    @property
    def congestion_control(self) -> str:
        """The name of how TCP slows down on these hosts when packets are lost."""
        shows = self.hosts[0].start(["cat", f"{_SYSCTL}/tcp_congestion_control"], {}, stdout=subprocess.PIPE)
        return shows.communicate(timeout=_END_SECONDS)[0].decode().strip()

    def connect(self, links: Sequence[Link], seed: int = 0) -> Counters:
        """Connect each host by its link; what the links before have carried. Packets under way are dropped."""
        assert self._emulator is not None
        assert len(links) == self.count, "one link for each host"
        assert self._emulator.stdin is not None
        assert self._emulator.stdout is not None
        self._emulator.stdin.write(emulator.orders(links, seed).encode())
        self._emulator.stdin.flush()
        line = self._emulator.stdout.readline()
        if not line:
            raise BatchGrowthError(f"the emulator has ended with exit code {self._emulator.wait()}")
        return Counters(**json.loads(line))


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(timeout=_END_SECONDS)
    for end in (process.stdin, process.stdout, process.stderr):
        if end is not None:
            end.close()


def _made(address: str) -> tuple[int, int]:
    """Descriptors of a new network namespace, and of the device by which it reaches its network. Raises OSError."""
    with ThreadPoolExecutor(max_workers=1) as one:  # a namespace is of a thread, and this one ends
        return one.submit(_enter_new, address).result()


def _enter_new(address: str) -> tuple[int, int]:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    raise_interface()
    tap = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", _DEVICE, _IFF_TUN | _IFF_NO_PI))
        _set_up(address)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), tap
    except BaseException:
        os.close(tap)
        raise


def _set_up(address: str) -> None:
    """Give the device its address, and bring it up (struct ifreq, netdevice(7))."""
    (_SYSCTL / "tcp_no_metrics_save").write_text("1", encoding="ascii")  # a connection learns nothing of earlier ones
    for name in _CONGESTION_CONTROLS:
        with suppress(OSError):
            (_SYSCTL / "tcp_congestion_control").write_text(name, encoding="ascii")
            break
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
            packed = struct.pack("16sHH4s16x", _DEVICE, socket.AF_INET, 0, socket.inet_aton(text))
            fcntl.ioctl(control, request, packed)
        for request, number in ((_SIOCSIFMTU, MTU), (_SIOCSIFTXQLEN, _QUEUE)):
            fcntl.ioctl(control, request, struct.pack("16si20x", _DEVICE, number))
    raise_interface(_DEVICE)
