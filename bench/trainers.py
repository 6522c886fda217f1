"""What bench.pipeline compares: one process, two members of AllReduce, and two stages, each in processes of its own.

They are bare loops over the trainer's own replicas, without Dask, driver, history and loaders, so that only the way in
which the work is divided differs.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Protocol

import torch
import torch.distributed as dist
from batchgrowth.spec import JobSpec
from batchgrowth_trainer.exchange.all_reduce import AllReduce
from batchgrowth_trainer.exchange.connections import TOKEN_BYTES, Door, seats
from batchgrowth_trainer.exchange.group import Group, TcpGroup
from batchgrowth_trainer.exchange.strategy import Setting
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.replica.building import build_workload
from batchgrowth_trainer.replica.devices import prepare_process
from batchgrowth_trainer.replica.replica import Replica
from torch import Tensor

from bench.loopback import sent_bytes
from bench.stages import STAGES, Gloo, Stage, Tcp
from bench.systems import ONE, OUR_REDUCE

PIPELINE, OVER_GLOO = "pipeline", "pipeline over gloo"
WORLDS = {ONE: 1, OUR_REDUCE: 2, PIPELINE: STAGES, OVER_GLOO: STAGES}
"""System -> its number of processes."""
_HERE, _PATIENCE_SECONDS = "127.0.0.1", 120.0


@dataclass(frozen=True, slots=True)
class Share:
    """One process: ms per update, the part of them in which it waited, the ms of them that it took a processor, and its
    peak memory above that at its start.

    `sent` are the bytes per update over the loopback interface, of all processes; `sha256` is that of the weights at
    the end, "" if another process has the whole of them.
    """

    ms: float
    idle: float
    cpu_ms: float
    peak_mib: float
    sent: float
    sha256: str


class Trainer(Protocol):
    """One process's part in the training."""

    replica: Replica

    @property
    def waited(self) -> float:
        """The seconds so far in which it waited for another process."""

    def update(self) -> None:
        """Take the next update of the plan."""


def run(system: str, spec: JobSpec, at: str, warm: int) -> list[Share]:
    """Each process's share of a whole training; the clock starts after `warm` updates. Raises EOFError if one fails."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    token, ends, processes = secrets.token_bytes(TOKEN_BYTES), [], []
    with tempfile.TemporaryDirectory(prefix="batchgrowth-bench-") as folder:
        for rank in range(WORLDS[system]):
            mine, theirs = context.Pipe()
            given = (system, spec, at, warm, rank, f"{folder}/store", token, theirs)
            process = context.Process(target=_serve, args=given, daemon=True)
            process.start()
            theirs.close()
            ends.append(mine)
            processes.append(process)
        try:
            return [end.recv() for end in ends]
        finally:
            for process in processes:
                process.join(timeout=10)
                process.kill()


def _serve(
    system: str, spec: JobSpec, at: str, warm: int, rank: int, store: str, token: bytes, answer: Connection
) -> None:
    prepare_process(spec)
    world = WORLDS[system]
    if world > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    before = _status("VmRSS")
    answer.send(_trained(_trainer(system, spec, at, rank, token), rank, world, warm, before))
    if world > 1:
        _meet(world)
        dist.destroy_process_group()


def _trainer(system: str, spec: JobSpec, at: str, rank: int, token: bytes) -> Trainer:
    if system == ONE:
        return Alone(spec)
    if system == OVER_GLOO:
        return Stage(spec, at, rank, Gloo(1 - rank))
    group = _group(rank, WORLDS[system], token)
    return Member(spec, group) if system == OUR_REDUCE else Stage(spec, at, rank, Tcp(group, 1 - rank))


def _group(rank: int, size: int, token: bytes) -> Group:
    """The connections that the trainer's own members have."""
    door = Door(_HERE)
    doors = [door.address] * size
    dist.all_gather_object(doors, door.address)
    return TcpGroup(list(seats(doors, token, _PATIENCE_SECONDS))[rank], door, None)


def _trained(trainer: Trainer, rank: int, world: int, warm: int, before: float) -> Share:
    replica = trainer.replica
    updates, began, waited, cpu, sent = replica.plan.updates, 0.0, 0.0, 0.0, 0
    for update in range(updates):
        if update == warm:
            _meet(world)
            _forget_peak()
            began, waited, cpu, sent = perf_counter(), trainer.waited, process_time(), sent_bytes()
        trainer.update()
    seconds, waited, cpu = perf_counter() - began, trainer.waited - waited, process_time() - cpu
    _meet(world)
    timed = updates - warm
    sent = sent_bytes() - sent
    peak, ms, cpu_ms = _status("VmHWM") - before, 1e3 * seconds / timed, 1e3 * cpu / timed
    return Share(ms, waited / seconds, cpu_ms, peak, sent / timed, _sha256(trainer, rank))


class Alone:
    """The whole model, and all shards. See Trainer."""

    waited = 0.0

    def __init__(self, spec: JobSpec) -> None:
        self.replica = Replica(spec, build_workload(spec), torch.device("cpu"))

    def update(self) -> None:
        """See Trainer."""
        step = self.replica.plan.step_at(self.replica.position)
        whole = self.replica.partials(step, (0, step.shards))
        self.replica.commit(step, whole[0].row)
        self.replica.rows.release(whole)


class Member:
    """The whole model, and some of the shards. See Trainer."""

    def __init__(self, spec: JobSpec, group: Group) -> None:
        self.replica, self.waited = Replica(spec, build_workload(spec), torch.device("cpu")), 0.0
        self._strategy = AllReduce(Setting(self.replica, group, nullcontext(), lambda: None))

    def update(self) -> None:
        """See Trainer."""
        self.waited += self._strategy.round(lambda: False).wait_seconds


def _sha256(trainer: Trainer, rank: int) -> str:
    """That of the whole model, in the process of rank 0; a stage's parts are put together there."""
    if not isinstance(trainer, Stage):
        return weights_sha256(trainer.replica.state_dict())
    parts: list[Any] | None = [None] * STAGES if rank == 0 else None
    dist.gather_object(trainer.replica.state_dict(), parts)
    whole: dict[str, Tensor] = {}
    for part in parts or []:
        whole |= _of(part)
    return weights_sha256(whole) if whole else ""


def _of(part: Any) -> Mapping[str, Tensor]:
    assert isinstance(part, Mapping)
    return part


def _meet(world: int) -> None:
    if world > 1:
        dist.barrier()


def _status(name: str) -> float:
    """A size in this process's status, in MiB: its memory now is VmRSS, the most since the last reset VmHWM."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def _forget_peak() -> None:
    """Reset VmHWM to what is in memory now (proc(5)): to build a replica takes memory that training does not."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
