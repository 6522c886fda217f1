"""Tries a workload before its first update: one shard is computed and discarded."""

import hashlib
import platform
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.position import Position
from torch import Tensor

from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.record.snapshot import pack
from batchgrowth_trainer.replica.data import Request, Requests, is_indexed, read
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.user_errors import reported_as_device_fault, reported_as_workload_error, seen_at


def first_shard(replica: Replica) -> Arithmetic:
    """Compute the first shard with the replica's current weights; the replica stays unchanged.

    A replica that was just built has the first weights of its job, the same in every process. The digest is empty if
    the kernels need not be deterministic: it would differ from process to process.
    Raises what computing a shard raises.
    """
    partials = replica.partials(replica.plan.step_at(Position()), (0, 1))
    digest = hashlib.sha256(pack(partials[0].row).data.tobytes()).hexdigest()
    replica.rows.release(partials)
    return Arithmetic(
        digest="" if replica.spec.deterministic is False else digest,
        device=_device(replica.device),
        processor=processor(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        torch=f"torch {torch.__version__}",
        threads=f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}",
    )


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


@cache
def processor() -> str:
    """Return the processor's model, as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


_READ_TWICE = 4  # examples


def try_out(replica: Replica) -> None:
    """Compute the first shard and keep its digest; the replica stays as it was.

    This loads kernels, and finds what would fail in the first update or would silently give workers different weights:
    a model that changes its own parameters or makes itself a buffer, and examples that no seed repeats.
    Raises WorkloadError or DataError.
    """
    _check_reading(replica)
    parameters = dict(replica.model.named_parameters())
    versions = {name: parameter._version for name, parameter in parameters.items() if not parameter.is_inference()}
    buffers = _buffers(replica)
    before = replica.parameters.vector.detach().clone()
    with reported_as_device_fault("update 1, shard 0"):  # a GPU reports an error when results are copied
        replica.arithmetic = first_shard(replica)
    forward = seen_at(replica.model)
    for name, parameter in replica.model.named_parameters():
        if name not in parameters or parameter is not parameters[name]:
            how = "replaced" if name in parameters else "created"
            raise WorkloadError(
                f"the parameter model.{name} is {how} when the model is called, so it would not be trained; create it "
                f"in __init__{forward}"
            )
    # A version tells of a change in place, even by the same values; comparing finds a change by way of `.data`.
    changed = [name for name, version in versions.items() if parameters[name]._version != version]
    for _, span in replica.parameters.members:
        if not torch.equal(span.of(before), span.of(replica.parameters.vector.data)):
            changed.append(span.name)
    if changed:
        raise WorkloadError(
            f"the parameter model.{changed[0]} is changed when the model is called, which only the optimizer may do; "
            f"give what the model changes itself a buffer, by register_buffer{forward}"
        )
    _check_buffers(replica, buffers.keys())


def _buffers(replica: Replica) -> dict[str, Tensor]:
    """Return the buffers that are not None, by name; a shared buffer has several names."""
    return dict(replica.model.named_buffers(remove_duplicate=False))


def _check_buffers(replica: Replica, before: Set[str]) -> None:
    """Refuse a buffer that a call of the model has created.

    The flat vectors have no place for it, so its changes would not be averaged, and processes would diverge.
    """
    for name, buffer in _buffers(replica).items():
        if name not in before:
            owner = replica.model.get_submodule(name.rpartition(".")[0])
            raise WorkloadError(
                f"the buffer model.{name} is created when the model is called, so each worker would have its own; "
                f"register it in __init__ with its final shape, such as torch.zeros({tuple(buffer.shape)}, "
                f"dtype={buffer.dtype}){seen_at(owner)}"
            )


def _check_reading(replica: Replica) -> None:
    """Read the first examples twice, as happens when a worker takes over a shard, and compare them."""
    workload = replica.workload
    if is_indexed(workload, workload.train):
        return
    whole = Requests(replica.spec.seed).of(replica.plan, replica.plan.step_at(replica.position), 0)
    request = Request(None, whole.indices[:_READ_TWICE], whole.seed)
    with reported_as_workload_error("reading the first examples"):
        first = read(workload, request)
        second = read(workload, request)
    if not _is_same(first, second):
        at = seen_at(getattr(workload.train, "__getitem__", None)) or seen_at(workload.collate)
        raise WorkloadError(
            f"example {request.indices[0]} or one of the {len(request.indices) - 1} after it reads otherwise the "
            "second time, so workers would train on different data; draw from torch, numpy.random or random, which the "
            f"trainer seeds, and not from a generator of your own or of the system{at}"
        )


def _is_same(first: Any, second: Any) -> bool:
    """Return whether all tensors, numbers and texts of two batches are the same bit for bit."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor):
        if (first.shape, first.dtype) != (second.shape, second.dtype) or first.layout is not torch.strided:
            return first.layout is not torch.strided
        return bool(((first == second) | ((first != first) & (second != second))).all())
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(_is_same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_is_same, first, second))
    return not isinstance(first, int | float | str | bytes) or first == second or first != first
