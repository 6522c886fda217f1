"""What the driver calls inside a Dask worker: a few plain functions over the members of this process.

`prepare_member` and `train_generation` run as tasks in the worker's thread; the coroutines run on its event loop,
beside a task that trains.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from batchgrowth.plan import Plan, Position
from batchgrowth.spec import JobSpec
from distributed import Worker, get_worker

from batchgrowth_trainer.record.snapshot import from_arrays, to_arrays
from batchgrowth_trainer.worker.leave import Leave
from batchgrowth_trainer.worker.member import Member, Order, Outcome

LEAVING = "leaving"

_MEMBERS: dict[str, Member] = {}

Packed = tuple[Position, Mapping[str, np.ndarray]]
Reports = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A member that can join at any update boundary from now on."""

    name: str
    host: str
    pid: int
    gpu: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Gradients:
    """One row for each of a member's nodes of the fixed tree, and the seconds it took to compute them."""

    rows: list[np.ndarray]
    seconds: float


def topic(run_id: str) -> str:
    """The Dask event topic of one run."""
    return f"batchgrowth-{run_id}"


def _say_leaving(worker: Worker) -> None:
    for run_id in _MEMBERS:
        worker.log_event(topic(run_id), {"kind": LEAVING, "worker": worker.address})


def _abandon(run_ids: Iterable[str]) -> None:
    for run_id in run_ids:
        _MEMBERS.pop(run_id).control.abandoned = True


LEAVE = Leave(_MEMBERS, _say_leaving, lambda: _abandon(tuple(_MEMBERS)))


def member_of(run_id: str) -> Member:
    """This process's member of the run."""
    return _MEMBERS[run_id]


def prepare_member(run_id: str, spec: JobSpec, plan: Plan, paths: Sequence[str]) -> Prepared:
    """Load the workload and make a replica ready to join. Raises WorkloadError and DataError."""
    began = time.perf_counter()
    sys.path[:0] = [path for path in paths if path not in sys.path]
    if run_id not in _MEMBERS:
        _MEMBERS[run_id] = Member(spec, plan)
    return Prepared(str(get_worker().name), socket.gethostname(), os.getpid(), _gpu(), time.perf_counter() - began)


def train_generation(run_id: str, order: Order) -> Outcome:
    """One generation of this process's member, reported through Dask's events."""
    worker = get_worker()

    def report(message: dict[str, Any]) -> None:
        worker.log_event(topic(run_id), message)

    return member_of(run_id).train(order, report)


def compute_gradients(
    run_id: str, model: Mapping[str, np.ndarray], position: Position, rank: int, size: int
) -> Gradients:
    """This member's rows of the update at `position`, with the server's model."""
    began = time.perf_counter()
    rows = member_of(run_id).partial_rows(model, position, rank, size)
    return Gradients(rows, time.perf_counter() - began)


async def answer() -> bool:
    """The process lives and its event loop turns."""
    return True


async def request_stop(run_id: str, generation: int) -> None:
    """Let this generation end after the update that is under way."""
    member_of(run_id).control.request_stop(generation)


async def take_snapshot(run_id: str, reported: int, evaluated: int) -> tuple[Packed, Reports]:
    """The member's state at its next update boundary, with all reports of what led to it that are not known yet."""
    member = member_of(run_id)
    snapshot = await asyncio.wrap_future(member.control.request_snapshot())
    return to_arrays(snapshot), member.untold(reported, evaluated)


async def take_reports(run_id: str, reported: int, evaluated: int) -> Reports:
    """What the member knows beyond rows up to `reported` and evaluations up to `evaluated`."""
    return member_of(run_id).untold(reported, evaluated)


async def restore_member(run_id: str, packed: Packed) -> None:
    """Set the member's state. Raises CheckpointError where it does not fit."""
    member_of(run_id).replica.restore(from_arrays(packed))


async def take_result(run_id: str) -> tuple[Packed, dict[str, np.ndarray]]:
    """The member's state and the model's own state dict, when it does not train."""
    replica = member_of(run_id).replica
    return to_arrays(replica.snapshot()), {name: tensor.numpy() for name, tensor in replica.state_dict().items()}


async def abandon_others(run_id: str) -> None:
    """A new driver is here: members of earlier runs end at their next update boundary and are forgotten."""
    _abandon([key for key in _MEMBERS if key != run_id])


async def take_leave() -> None:
    """The driver has heard that this worker is leaving: it will be let go by `forget`."""
    LEAVE.note_heard()


async def forget(run_id: str) -> None:
    """The run is over, or goes on without this worker: free its replica."""
    _MEMBERS.pop(run_id, None)


def _gpu() -> str:
    if not torch.cuda.is_available():
        return ""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
