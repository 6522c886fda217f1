"""`python -m bench.many_members`: what a large group costs its members, without Dask: to form, and to exchange.

The members are threads of a few processes, and their connections are real ones over the loopback interface. Each adds
up one shard of its own; the totals must have the bits of one process.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import resource
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Annotated, Any

import psutil
import torch
import typer
from batchgrowth.shards import tree_sum
from batchgrowth_trainer.exchange import connections
from batchgrowth_trainer.exchange.connections import TOKEN_BYTES, Address, Door, Encryption, Seat, seats
from batchgrowth_trainer.exchange.group import TcpGroup
from batchgrowth_trainer.exchange.reduction import Reduction
from batchgrowth_trainer.replica.rows import lay_out
from distributed.security import Security
from rich.console import Console
from torch import Tensor

from bench.report import Sheet, as_table

_HERE = "127.0.0.1"
_PATIENCE_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one host: most connections of a member, seconds to form and per exchange, and the host's files, threads at
    most, and memory, after forming.
    """

    connections: int
    forming: float
    exchange: float
    files: int
    threads: int
    memory: float
    digests: frozenset[str]


class Host:
    """Some of the members, as threads of this process."""

    def __init__(self, count: int) -> None:
        _allow_many_files()
        self._doors = [Door(_HERE) for _ in range(count)]
        self._pool = ThreadPoolExecutor(count)
        self._groups: list[TcpGroup] = []

    def doors(self) -> list[Address]:
        """Where the members are reached."""
        return [door.address for door in self._doors]

    def form(self, places: Sequence[Seat], pair: Security | None) -> tuple[float, int, int, float]:
        """Seat the members: seconds, files, threads at most, MiB of memory more."""
        encryption = _encryption(pair)
        process, before, most, over = psutil.Process(), _memory(), [0], threading.Event()
        watch = threading.Thread(target=_watch_threads, args=(most, over))
        watch.start()
        began = time.perf_counter()
        self._groups = list(self._pool.map(lambda seat, door: TcpGroup(seat, door, encryption), places, self._doors))
        seconds = time.perf_counter() - began
        over.set()
        watch.join()
        return seconds, process.num_fds(), most[0], _memory() - before

    def exchange(self, length: int, times: int) -> tuple[float, set[str]]:
        """Seconds per exchange of rows of `length` numbers, and the SHA-256 of the totals."""
        room = torch.empty(length)

        def act(group: TcpGroup) -> str:
            reduction, done = Reduction(group), hashlib.sha256()
            for at in range(times):
                rows = [_node(at, lo, hi, length) for lo, hi in lay_out(group.size, group.size).nodes[group.rank]]
                done.update(reduction(rows, group.size, room).total.numpy().tobytes())
            return done.hexdigest()

        began = time.perf_counter()
        digests = set(self._pool.map(act, self._groups))
        return (time.perf_counter() - began) / times, digests

    def close(self) -> None:
        """Disconnect all members."""
        for group in self._groups:
            group.close()
        for door in self._doors:
            door.close()
        self._pool.shutdown()


class Process:
    """A host in a process of its own."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(count, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """What the host's method returns. Raises EOFError if the process has failed."""
        self._end.send((name, arguments))
        return self._end.recv()

    def close(self) -> None:
        """End the process."""
        self._end.close()
        self._process.join(timeout=10)
        self._process.kill()


Call = Callable[..., Any]


def measure(
    calls: Sequence[Call], length: int, times: int, pair: Security | None = None, mesh: int = connections.LARGEST_MESH
) -> list[Cost]:
    """The cost of each host; `calls` call a host's method by its name. `mesh` is in place of LARGEST_MESH."""
    with ThreadPoolExecutor(len(calls)) as pool:
        doors = list(pool.map(lambda call: call("doors"), calls))
        most, connections.LARGEST_MESH = connections.LARGEST_MESH, mesh
        try:
            everyone = [door for some in doors for door in some]
            every = iter(list(seats(everyone, secrets.token_bytes(TOKEN_BYTES), _PATIENCE_SECONDS)))
        finally:
            connections.LARGEST_MESH = most
        places = [[next(every) for _ in some] for some in doors]
        formed = list(pool.map(lambda call, some: call("form", some, pair), calls, places))
        exchanged = list(pool.map(lambda call: call("exchange", length, times), calls))
    return [
        Cost(max(len(seat.doors) for seat in some), forming, seconds, files, threads, memory, frozenset(digests))
        for some, (forming, files, threads, memory), (seconds, digests) in zip(places, formed, exchanged, strict=True)
    ]


def expected(members: int, length: int, times: int) -> str:
    """The SHA-256 of the totals that one process has."""
    done = hashlib.sha256()
    for at in range(times):
        done.update(_node(at, 0, members, length).numpy().tobytes())
    return done.hexdigest()


def main(
    members: Annotated[list[int], typer.Argument(min=2)],
    processes: Annotated[int, typer.Option(min=1)] = 4,
    length: Annotated[int, typer.Option(min=1, help="Numbers in a row.")] = 10_000,
    times: Annotated[int, typer.Option(min=1, help="Exchanges.")] = 3,
    mesh: Annotated[
        int, typer.Option(min=1, help="Connect all members of groups up to this size.")
    ] = connections.LARGEST_MESH,
    encrypted: Annotated[bool, typer.Option("--encrypted")] = False,
) -> None:
    """Print what groups of these sizes cost; a size is rounded down to a multiple of the number of processes."""
    rows: list[tuple[str, ...]] = []
    for size in members:
        each = size // processes
        hosts = [Process(each) for _ in range(processes)]
        pair = Security.temporary() if encrypted else None
        costs = measure([host.call for host in hosts], length, times, pair, mesh)
        for host in hosts:
            host.close()
        same = {expected(each * processes, length, times)} == {one for cost in costs for one in cost.digests}
        rows.append(_row(each * processes, costs, same=same))
    columns = ("members", "connections each", "files each", "MiB each", "threads each", "s to form", "ms per exchange",
               "same bits")  # fmt: skip
    Console().print(
        as_table(Sheet(f"Groups over {'TLS' if encrypted else 'TCP'}, {processes} processes", columns, rows))
    )


def _row(size: int, costs: list[Cost], *, same: bool) -> tuple[str, ...]:
    peers = max(cost.connections for cost in costs)
    sums = [sum(numbers) / size for numbers in zip(*((c.files, c.memory, c.threads) for c in costs), strict=True)]
    worst = max(cost.forming for cost in costs), 1e3 * max(cost.exchange for cost in costs)
    return (str(size), str(peers), f"{sums[0]:.1f}", f"{sums[1]:.2f}", f"{sums[2]:.1f}", f"{worst[0]:.2f}",
            f"{worst[1]:.1f}", "yes" if same else "NO")  # fmt: skip


def _serve(count: int, orders: Connection) -> None:
    torch.set_num_threads(1)
    host = Host(count)
    try:
        while True:
            name, arguments = orders.recv()
            orders.send(getattr(host, name)(*arguments))
    except EOFError:
        host.close()


def _node(at: int, lo: int, hi: int, length: int) -> Tensor:
    """Of summands whose magnitudes differ, so that any other order of additions gives other bits."""

    def leaf(shard: int) -> Tensor:
        draw = torch.Generator().manual_seed(at * 10_007 + shard)
        return torch.randn(length, generator=draw) * 10.0 ** (shard % 7 - 3)

    return tree_sum(lo, hi, leaf, torch.add)


def _encryption(pair: Security | None) -> Encryption | None:
    if pair is None:
        return None
    dials = pair.get_connection_args("worker")["ssl_context"]
    return Encryption(pair.get_listen_args("worker")["ssl_context"], dials)


def _watch_threads(most: list[int], over: threading.Event) -> None:
    while not over.wait(0.02):
        most[0] = max(most[0], threading.active_count())


def _memory() -> float:
    return float(psutil.Process().memory_full_info().uss) / (1 << 20)


def _allow_many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    typer.run(main)
