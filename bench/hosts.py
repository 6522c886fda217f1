"""Hosts on one machine: a network namespace each, connected by the emulator.

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from batchgrowth.errors import BatchGrowthError

from bench import emulator
from bench.emulator import MTU, NETWORK, Counters, Link
from bench.loopback import raise_interface

ROOT = Path(__file__).parents[1]
PROGRAMS = ("setpriv", "nsenter")
"""The programs of util-linux that start a program on a host."""
_IF_STARTED_BY = '[ "$PPID" = "$0" ] && exec "$@"'
"""A starter that ends before `setpriv` asks for its signal sends none: then the program has another parent by now."""
_QUEUE = 10_000
"""The packets that wait in a device for the emulator, which then drops packets by its own queues, not by being late."""
_CONGESTION_CONTROLS = ("cubic", "reno")
"""The first one that this machine permits is used: Linux's default, or the one that every Linux has."""
_SYSCTL = Path("/proc/sys/net/ipv4")
_TUN = "/dev/net/tun"
_DEVICE = b"tun0"
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_WITHOUT_HEADER = 0x1001
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_SIOCSIFMTU = 0x8922
_SIOCSIFTXQLEN = 0x8943
_END_SECONDS = 10.0


def why_not() -> str:
    """Return why hosts cannot be made here; empty if they can."""
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
        words = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", _IF_STARTED_BY, str(os.getpid())]
        words += ["nsenter", f"--net=/proc/self/fd/{self.namespace}", *command]
        return subprocess.Popen(
            words,
            env=os.environ | environment,
            pass_fds=[self.namespace],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
        )


@dataclass(slots=True)
class Hosts:
    """A number of hosts; the context manager ends the programs that `run` started, and then their network."""

    count: int
    hosts: list[Host] = field(default_factory=list)
    _emulator: subprocess.Popen[bytes] | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        """Make the hosts. Raises BatchGrowthError if that is not possible here."""
        if reason := why_not():
            raise BatchGrowthError(reason)
        taps = []
        with ExitStack() as only_here, ExitStack() as opened:
            for number in range(1, self.count + 1):
                address = f"{NETWORK}{number}"
                namespace, tap = _made(address)
                opened.callback(os.close, namespace)
                only_here.callback(os.close, tap)  # the emulator has a copy, and only it needs one
                self.hosts.append(Host(address, namespace))
                taps.append(tap)
            command = [sys.executable, "-m", emulator.__name__, ",".join(map(str, taps))]
            self._emulator = subprocess.Popen(
                command, cwd=ROOT, pass_fds=taps, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            opened.callback(_ended, self._emulator)
            self._stack = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def run(self, host: int, command: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        """Start a program on that host, which writes to the file `output` and ends with the hosts."""
        with output.open("wb") as file:
            process = self.hosts[host].start(command, environment, stdout=file, stderr=subprocess.STDOUT)
        self.owns(process)

    def owns(self, process: subprocess.Popen[bytes]) -> None:
        """Kill this process before the network ends."""
        self._stack.callback(_ended, process)

    def connect(self, links: Sequence[Link], seed: int = 0) -> Counters:
        """Connect each host by its link; return what the links before have carried. Packets under way are dropped."""
        assert self._emulator is not None
        assert len(links) == self.count, "one link for each host"
        assert self._emulator.stdin is not None
        assert self._emulator.stdout is not None
        order = {"links": [asdict(link) for link in links], "seed": seed}
        self._emulator.stdin.write(json.dumps(order).encode() + b"\n")
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
    """Return descriptors of a new network namespace and of the device that is its network. Raises OSError."""
    with ThreadPoolExecutor(max_workers=1) as one:  # a namespace is of a thread, and this one ends
        return one.submit(_enter_new, address).result()


def _enter_new(address: str) -> tuple[int, int]:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    raise_interface()
    tap = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", _DEVICE, _IFF_TUN_WITHOUT_HEADER))
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
