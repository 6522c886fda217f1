"""Two processes for the baselines, started once and idle while other systems are measured."""

from __future__ import annotations

import multiprocessing
import os
import socket
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import torch.distributed as dist
from batchgrowth.spec import JobSpec
from batchgrowth_trainer.replica.devices import prepare_process

from bench import baselines, plain
from bench.baselines import Sample
from bench.systems import ONE, WORKERS

_HOST = "127.0.0.1"


class Peers:
    """The processes, by rank; the context manager ends them."""

    def __init__(self, spec: JobSpec) -> None:
        context, port = multiprocessing.get_context("spawn"), _free_port()
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(WORKERS):
            mine, theirs = context.Pipe()
            # Not a daemon, since a DataLoader has children; it ends with its pipe.
            process = context.Process(target=_serve, args=(rank, port, spec, theirs), daemon=False)
            process.start()
            theirs.close()
            self._ends.append(mine)
            self._processes.append(process)

    def measure(self, system: str, spec: JobSpec, warm: int) -> Sample:
        """Rank 0's sample; where one process trains, rank 1 stays idle. Raises EOFError if a process has failed."""
        ends = self._ends[:1] if system in (ONE, *plain.SYSTEMS) else self._ends
        for end in ends:
            end.send((system, spec, warm, len(ends)))
        samples: list[Sample] = [end.recv() for end in ends]
        return samples[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(timeout=10)
            process.kill()


def _serve(rank: int, port: int, spec: JobSpec, orders: Connection) -> None:
    prepare_process(spec)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://{_HOST}:{port}", rank=rank, world_size=WORKERS)
    try:
        while True:
            system, job, warm, world = orders.recv()
            if system in plain.SYSTEMS:
                orders.send(plain.measure(system, job, warm))
            else:
                orders.send(baselines.measure(system, job, warm, rank, world))
    except EOFError:
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
