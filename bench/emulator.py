"""An emulated network between network namespaces, in one process: delay, rate, loss and queues.

Each host has a TUN device, and this process holds the other end of all of them: it reads the IP packets that a host
sends, and writes each, some time later, to the host that it is addressed to. Each host is connected with a switch by a
`Link` of its own, which its packets pass on the way out and those of others on the way in.

`Switch` decides when which packet arrives and knows no clock and no files; `main` is the process around it.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import os
import random
import select
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

MTU = 9000
"""Bytes of the largest packet: that of jumbo frames, so that few packets pass through Python."""
NETWORK = "10.77.0."
"""The hosts have the addresses NETWORK1, NETWORK2, … in their order."""
_MOST_HOSTS = 250
_BURST = 32
"""Packets that are read from one host before the others have their turn."""
_IPV4 = 4


@dataclass(frozen=True, slots=True)
class Link:
    """The cable between a host and the switch.

    A packet that the host sends is lost with the probability `loss`, and takes `delay_seconds` to its receiver. Each
    direction carries `megabits` per second, one packet after another, and drops a packet that would wait behind more
    than `queue_bytes`; None is no limit. A link that is `cut` carries nothing, in either direction.
    """

    delay_seconds: float = 0.0
    megabits: float | None = None
    loss: float = 0.0
    queue_bytes: int = 512 * 1024
    cut: bool = False


@dataclass(slots=True)
class Counters:
    """What the hosts have sent since the links were set: `packets`, and their `size` in bytes.

    Of these packets some were `lost` by chance or at a cut, `dropped` by full queues, and `refused` by the receiver;
    those that `arrived` did so `late_seconds` after their time, summed. The emulator took `processor_seconds`.
    """

    packets: int = 0
    size: int = 0
    lost: int = 0
    dropped: int = 0
    refused: int = 0
    arrived: int = 0
    late_seconds: float = 0.0
    processor_seconds: float = 0.0


class Switch:
    """The packets under way. All times are in seconds, by one clock of the caller."""

    def __init__(self, links: Sequence[Link], seed: int) -> None:
        """`seed` decides which packets are lost. Raises ValueError for more hosts than there are addresses."""
        if len(links) > _MOST_HOSTS:
            raise ValueError(f"{len(links)} hosts; give at most {_MOST_HOSTS}")
        self.counters = Counters()
        self._links = links
        self._random = random.Random(seed)
        self._out = [_Direction(link) for link in links]
        self._in = [_Direction(link) for link in links]
        self._order = itertools.count()
        self._under_way: list[tuple[float, int, bool, int, bytes]] = []  # when, order, is it received, by whom, packet

    @property
    def next_at(self) -> float:
        """Return when `due` has something to do; infinite if no packet is under way."""
        if not self._under_way:
            return math.inf
        return self._under_way[0][0]

    def accept(self, host: int, packet: bytes, now: float) -> None:
        """Take a packet that this host, counted from 0, sends; ignore one that is for no host."""
        to = _destination(packet)
        if to is None or to >= len(self._links):
            return
        link = self._links[host]
        self.counters.packets += 1
        self.counters.size += len(packet)
        if link.cut or self._links[to].cut or (link.loss and self._random.random() < link.loss):
            self.counters.lost += 1
            return
        self._push(self._out[host].passed(len(packet), now), link.delay_seconds, False, to, packet)

    def due(self, now: float) -> Iterator[tuple[int, bytes, float]]:
        """Yield (host, packet, when) for each packet that has arrived by `now`, in the order in which they arrive."""
        while self._under_way and self._under_way[0][0] <= now:
            at, _, received, host, packet = heapq.heappop(self._under_way)
            if received:
                yield host, packet, at
            else:
                self._push(self._in[host].passed(len(packet), at), 0.0, True, host, packet)

    def _push(self, passed_at: float | None, delay: float, received: bool, host: int, packet: bytes) -> None:
        if passed_at is None:
            self.counters.dropped += 1
        else:
            heapq.heappush(self._under_way, (passed_at + delay, next(self._order), received, host, packet))


class _Direction:
    """One direction of a link: when a packet has passed it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._free_at = -math.inf

    def passed(self, size: int, now: float) -> float | None:
        """Return when the packet's last byte has passed, behind all packets before; None if the queue is full."""
        if self._link.megabits is None:
            return now
        rate = self._link.megabits * 1e6 / 8
        begins = max(now, self._free_at)
        if (begins - now) * rate > self._link.queue_bytes:
            return None
        self._free_at = begins + size / rate
        return self._free_at


def _destination(packet: bytes) -> int | None:
    """Return the number of the host that an IPv4 packet is for; None for all other packets."""
    if len(packet) < 20 or packet[0] >> 4 != _IPV4 or not 0 < packet[19] <= _MOST_HOSTS:
        return None
    return packet[19] - 1


# --- the process ------------------------------------------------------------------------------------------------------


class _Taps:
    """The TUN devices, by host, and the switch between them."""

    def __init__(self, taps: Sequence[int]) -> None:
        self._taps = taps
        self._switch = Switch([Link() for _ in taps], 0)
        self._began = time.process_time()

    def replace(self, links: Sequence[Link], seed: int) -> Counters:
        """Begin with these links; return the counters of those before."""
        done = self._switch.counters
        now = time.process_time()
        done.processor_seconds = now - self._began
        self._switch = Switch(links, seed)
        self._began = now
        return done

    def serve(self, lines_from: int) -> None:
        """Carry packets until a line can be read, or its sender has gone."""
        while True:
            wait = None
            if not math.isinf(self._switch.next_at):
                wait = max(0.0, self._switch.next_at - time.monotonic())
            readable, _, _ = select.select([lines_from, *self._taps], [], [], wait)
            for host, tap in enumerate(self._taps):
                if tap in readable:
                    self._read(host, tap)
            self._deliver()
            if lines_from in readable:
                return

    def _read(self, host: int, tap: int) -> None:
        for _ in range(_BURST):
            try:
                packet = os.read(tap, MTU)
            except BlockingIOError:
                return
            self._switch.accept(host, packet, time.monotonic())

    def _deliver(self) -> None:
        now = time.monotonic()
        counters = self._switch.counters
        for host, packet, at in self._switch.due(now):
            try:
                os.write(self._taps[host], packet)
            except OSError:
                counters.refused += 1
            else:
                counters.arrived += 1
                counters.late_seconds += now - at


def main(taps: Sequence[int]) -> None:
    """Carry the packets of these TUN devices, until standard input is closed.

    Each line there sets the links and the seed, and drops the packets under way; the answer is a line with the Counters
    of the links before.
    """
    for tap in taps:
        os.set_blocking(tap, False)
    between = _Taps(taps)
    while True:
        between.serve(sys.stdin.fileno())
        line = sys.stdin.readline()  # the sender waits for the answer, so no second line is in the buffer
        if not line:
            return
        order = json.loads(line)
        done = between.replace([Link(**link) for link in order["links"]], order["seed"])
        print(json.dumps(asdict(done)), flush=True)


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1].split(",")])
