"""The emulated network of the benchmarks: what the switch decides, and what real sockets on real hosts then measure."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from processes import still_running

from bench.emulator import MTU, Link, Switch
from bench.hosts import Hosts, why_not

ROOT = Path(__file__).parents[2]
SECOND = bytes([10, 77, 0, 2])
LOSSY = Link(loss=0.2)


def packet(size: int, to: bytes = SECOND) -> bytes:
    """An IPv4 packet of this size."""
    return bytes([0x45, *[0] * 15, *to]).ljust(size, b"x")


def arrivals(switch: Switch, until: float) -> list[float]:
    return [round(at, 9) for _, _, at in switch.due(until)]


# --- decisions --------------------------------------------------------------------------------------------------------


def test_a_packet_arrives_after_the_delay_of_its_sender() -> None:
    switch = Switch([Link(delay_seconds=0.01), Link(delay_seconds=5)], 0)
    switch.accept(0, packet(100), 1.0)
    assert switch.next_at == 1.01
    assert list(switch.due(1.009)) == []
    assert [(1, packet(100), 1.01)] == list(switch.due(1.01))
    assert switch.next_at == float("inf")


def test_packets_pass_a_link_one_after_another() -> None:
    """A packet of 1,250 bytes takes 10 ms at 1 Mbit/s, on the way out and on the way in."""
    switch = Switch([Link(megabits=1), Link(megabits=1)], 0)
    for _ in range(3):
        switch.accept(0, packet(1250), 0.0)
    assert arrivals(switch, 1.0) == [0.02, 0.03, 0.04]


def test_two_senders_share_the_link_of_the_receiver() -> None:
    switch = Switch([Link(), Link(megabits=1), Link()], 0)
    for sender in (0, 2, 0, 2):
        switch.accept(sender, packet(1250), 0.0)
    assert arrivals(switch, 1.0) == [0.01, 0.02, 0.03, 0.04]


def test_what_is_late_takes_no_longer() -> None:
    """The switch computes with the times at which packets should have arrived, not with those at which it is asked."""
    switch = Switch([Link(delay_seconds=0.01), Link(megabits=1)], 0)
    switch.accept(0, packet(1250), 0.0)
    assert arrivals(switch, 100.0) == [0.02]


def test_a_full_queue_drops_packets() -> None:
    switch = Switch([Link(megabits=1, queue_bytes=2500), Link()], 0)
    for _ in range(5):
        switch.accept(0, packet(1250), 0.0)
    assert arrivals(switch, 1.0) == [0.01, 0.02, 0.03]
    assert switch.counters.dropped == 2


def test_the_seed_decides_which_packets_are_lost() -> None:
    def lost(seed: int) -> list[float]:
        switch = Switch([Link(loss=0.01), Link()], seed)
        for number in range(10_000):
            switch.accept(0, packet(100), float(number))
        return arrivals(switch, 1e9)

    first = lost(1)
    assert 9_850 < len(first) < 9_950
    assert first == lost(1) != lost(2)


def test_a_cut_link_carries_nothing_in_either_direction() -> None:
    switch = Switch([Link(), Link(cut=True), Link()], 0)
    switch.accept(0, packet(100), 0.0)
    switch.accept(1, packet(100, bytes([10, 77, 0, 1])), 0.0)
    switch.accept(2, packet(100, bytes([10, 77, 0, 1])), 0.0)
    assert arrivals(switch, 1.0) == [0.0]
    assert switch.counters.lost == 2


@pytest.mark.parametrize("other", [b"", packet(100)[:19], packet(100, bytes([10, 77, 0, 3])), b"\x60" + packet(99)])
def test_packets_for_no_host_are_ignored(other: bytes) -> None:
    switch = Switch([Link(), Link()], 0)
    switch.accept(0, other, 0.0)
    assert list(switch.due(1.0)) == []
    assert switch.counters.packets == 0


def test_more_hosts_than_addresses_are_refused() -> None:
    with pytest.raises(ValueError, match="251 hosts"):
        Switch([Link()] * 251, 0)


# --- real hosts -------------------------------------------------------------------------------------------------------

ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("10.77.0.2", 5000))
print("ready", flush=True)
while True:
    data, peer = server.recvfrom(65536)
    server.sendto(data, peer)
"""
PINGS = """
import json, socket, sys, time
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect(("10.77.0.2", 5000))
client.settimeout(float(sys.argv[2]))
trips = []
for number in range(int(sys.argv[1])):
    began = time.monotonic()
    client.send(str(number).encode())
    try:
        while client.recv(100) != str(number).encode():
            pass
    except TimeoutError:
        continue
    trips.append(time.monotonic() - began)
print(json.dumps(trips))
"""
SINK = """
import socket
server = socket.create_server(("10.77.0.2", 5000))
print("ready", flush=True)
connection = server.accept()[0]
while connection.recv(1 << 20):
    pass
connection.sendall(b"x")
"""
SOURCE = """
import socket, sys, time
client = socket.create_connection(("10.77.0.2", 5000))
began = time.monotonic()
client.sendall(bytes(int(sys.argv[1])))
client.shutdown(socket.SHUT_WR)
client.recv(1)
print(time.monotonic() - began)
"""


@pytest.fixture
def two(nothing_left_behind: None) -> Iterator[Hosts]:
    """Two hosts; skips the test if there can be none."""
    if reason := why_not():
        pytest.skip(reason)
    with Hosts(2) as hosts:
        yield hosts


def answer(hosts: Hosts, server: str, client: str, *arguments: str) -> str:
    """What the client on the first host prints, with the server on the second."""
    serving = hosts.hosts[1].start([sys.executable, "-c", server], {}, stdout=subprocess.PIPE)
    hosts.owns(serving)
    assert serving.stdout is not None
    assert serving.stdout.readline() == b"ready\n"
    asking = hosts.hosts[0].start([sys.executable, "-c", client, *arguments], {}, stdout=subprocess.PIPE)
    hosts.owns(asking)
    return asking.communicate(timeout=60)[0].decode()


def trips(hosts: Hosts, count: int, patience: float) -> list[float]:
    found: list[float] = json.loads(answer(hosts, ECHO, PINGS, str(count), str(patience)))
    return found


def test_a_round_trip_takes_twice_the_delay(two: Hosts) -> None:
    two.connect([Link(delay_seconds=0.02)] * 2)
    found = trips(two, 10, 30.0)
    assert len(found) == 10
    assert 0.04 <= min(found) < 0.2


def test_a_link_carries_as_much_as_it_should(two: Hosts) -> None:
    """A quarter of a megabyte takes a tenth of a second at 20 Mbit/s."""
    two.connect([Link(megabits=20)] * 2)
    assert 0.1 <= float(answer(two, SINK, SOURCE, "250000")) < 10
    carried = two.connect([Link()] * 2)
    assert 250_000 < carried.size < 500_000
    assert carried.packets >= 250_000 / MTU
    assert carried.lost == 0
    assert carried.processor_seconds > 0


def test_packets_are_lost(two: Hosts) -> None:
    two.connect([LOSSY] * 2, seed=1)
    assert len(trips(two, 40, 0.1)) < 40
    assert 0 < two.connect([Link()] * 2).lost < 80
    assert two.connect([Link()] * 2).lost == 0, "counters begin again with the links"


def test_connections_survive_lost_packets(two: Hosts) -> None:
    two.connect([Link(loss=0.02)] * 2, seed=1)
    assert float(answer(two, SINK, SOURCE, "2000000")) < 60
    assert two.connect([Link()] * 2).lost > 0


HOLDER = """
import time
from bench.hosts import Hosts
with Hosts(1) as hosts:
    process = hosts.hosts[0].start(["sleep", "600"], {})
    print(process.pid, hosts._emulator.pid, flush=True)
    time.sleep(600)
"""


LATE = f"""#!/bin/sh
sleep 1
exec {shutil.which("setpriv")} "$@"
"""


@pytest.fixture(params=["at once", "late"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs ask to be killed with their starter: before or after a starter that is killed right away has gone."""
    if request.param == "late":
        slow = tmp_path / "setpriv"
        slow.write_text(LATE)
        slow.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("two", "kept")
def test_nothing_outlives_a_process_that_is_killed() -> None:
    """Neither a program on a host nor the emulator; then the namespaces are gone too, as only they held them."""
    with subprocess.Popen([sys.executable, "-c", HOLDER], cwd=ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        processes = [psutil.Process(int(number)) for number in holder.stdout.readline().split()]
        assert len(processes) == 2
        holder.kill()
        holder.wait(timeout=30)
    alive = still_running(processes, seconds=30)
    for process in alive:
        process.kill()
    assert alive == []
