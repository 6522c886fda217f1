"""What the driver calls inside a Dask worker: a few functions over the members of this process.

Plain functions run as tasks in the worker's thread, or as requests; coroutines run on its event loop, while the thread
computes. A member's life: the driver prepares it (`prepare_member`), lets it train one generation after another
(`train_generation`) or compute gradients (`compute_gradients`), saves or restores its state in between, and drops it
(`forget`) when the run is over or the worker leaves.
"""

import asyncio
import logging
import random
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import dask.sizeof
import distributed.comm.core
import distributed.utils_comm
import torch
from batchgrowth.errors import ClusterError, Superseded
from batchgrowth.plan import Step
from batchgrowth.spec import JobSpec
from distributed import Worker, get_worker
from distributed.core import error_message
from distributed.protocol import to_serialize

from batchgrowth_trainer.building import begin
from batchgrowth_trainer.exchange.connections import Encryption
from batchgrowth_trainer.exchange.spot_check import Answer
from batchgrowth_trainer.record.snapshot import (
    PackedSnapshot,
    PackedTensor,
    PackedTrained,
    pack_snapshot,
    pack_trained,
    unpack_snapshot,
)
from batchgrowth_trainer.replica.evaluation import is_judged, trained_of
from batchgrowth_trainer.user_code import code_digests
from batchgrowth_trainer.user_errors import doing
from batchgrowth_trainer.worker import messages
from batchgrowth_trainer.worker.addresses import host_and_port
from batchgrowth_trainer.worker.exits import end_when
from batchgrowth_trainer.worker.greeted import OwnCertificate
from batchgrowth_trainer.worker.member import Member
from batchgrowth_trainer.worker.termination import Termination

log = logging.getLogger(__name__)

_DRAW = (dask.sizeof, distributed.comm.core, distributed.utils_comm)
"""The modules of Dask that draw random numbers while a worker trains."""


def draw_apart() -> None:
    """Give these modules a generator of their own instead of the module `random`.

    A worker's event loop draws from the global generator of `random` while another thread reads examples, for instance
    to estimate the size of a message by a sample of it. The trainer has seeded that generator for a shard, and whatever
    the examples draw from it must depend on the seed alone.
    """
    for module in _DRAW:
        vars(module)["random"] = random.Random()  # noqa: S311  (no secret)


draw_apart()

_MEMBERS: dict[str, Member] = {}
_PREPARING: dict[str, int] = {}
"""The runs whose member is being built, with the building thread; a run that is forgotten meanwhile gets no member."""
_STARTS: dict[str, int] = {}
"""The start number of the trainer that drives a run, for each run that this process knows or knew."""


class NoMember(ClusterError):
    """This process has no member of a run, although it is not leaving: another run has made it drop the member."""


class MemberReleased(Exception):
    """This process, which leaves, has no member of a run any more; its driver counts it as lost."""


def topic(run_id: str) -> str:
    """Return the Dask event topic of one run."""
    return f"batchgrowth-{run_id}"


def new_run_id(job: str) -> str:
    """Return a new identifier for a run, which begins with its job's name."""
    return f"{job}-{uuid.uuid4().hex}"


def job_of(run_id: str) -> str:
    """Return the name of the job in a run's identifier."""
    return run_id.rpartition("-")[0] or run_id


def _announce_leave(worker: Worker) -> None:
    for run_id in _MEMBERS:
        worker.log_event(topic(run_id), messages.encode(messages.Leaving(worker.address)))


def _abandon(run_ids: Iterable[str]) -> None:
    for run_id in run_ids:
        _PREPARING.pop(run_id, None)
        if member := _MEMBERS.pop(run_id, None):
            log.info("%s: the member is dropped after update %d", job_of(run_id), member.replica.position.update)
            member.control.abandoned = True
            member.close()


TERMINATION = Termination(_MEMBERS, _announce_leave, lambda: _abandon(tuple(_MEMBERS)))


def member_of(run_id: str) -> Member:
    """Return this process's member of the run.

    Raises NoMember without one, Superseded if a later start took over, and MemberReleased if this process leaves.
    """
    member = _MEMBERS.get(run_id)
    if member is not None:
        return member
    _refuse_earlier(_STARTS.get(run_id, 0))
    if TERMINATION.is_leaving:
        raise MemberReleased(run_id)
    raise NoMember(
        f"a worker has no member of {job_of(run_id)}: another run uses the same cluster, and made the worker drop it. "
        "Give each run a cluster of its own, or wait until the other run is over; --resume continues this one"
    )


def prepare_member(
    run_id: str, spec: JobSpec, paths: Sequence[str], start: int = 0, function: bytes = b""
) -> messages.Prepared:
    """Load the workload and build a replica that is ready to join.

    `start` is the start number of the driver's process; `function` is the workload's function if no module has it,
    pickled by record/functions.py. Raises WorkloadError and DataError, Superseded if a driver of a later start was
    here, and NoMember or MemberReleased if the run was forgotten before its member was built.
    """
    log.info("%s: preparing a member", job_of(run_id))
    # First, because a superseded driver must not make this worker load anything.
    _obey(run_id, start)
    worker = get_worker()
    listen(worker)
    if run_id not in _MEMBERS:
        _PREPARING[run_id] = threading.get_ident()
        try:
            begin(spec, paths, function, is_worker=True)
            member = Member(spec, host_and_port(worker.address)[0])
            _MEMBERS[run_id] = member
            member.watchdog.watch(_end)
            if run_id not in _PREPARING:  # it was forgotten meanwhile, on the event loop
                _abandon([run_id])
        finally:
            _PREPARING.pop(run_id, None)
    member = member_of(run_id)
    gpu = ""
    if torch.cuda.is_available():
        gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return messages.Prepared(
        str(worker.name),
        socket.gethostname(),
        gpu,
        member.listener.address,
        member.replica.arithmetic,
        code_digests(),
        member.replica.num_bytes,
    )


def train_generation(run_id: str, order: messages.Order) -> messages.MemberOutcome:
    """Train this process's member for one generation, with reports through Dask's events, and return the outcome."""
    worker = get_worker()

    def send(message: messages.Message) -> None:
        worker.log_event(topic(run_id), messages.encode(message))

    job = job_of(run_id)
    member = member_of(run_id)
    began = member.replica.position.update
    rank = order.assignment.rank
    size = order.assignment.size
    log.info("%s, update %d: generation %d begins, rank %d of %d", job, began, order.generation, rank, size)
    outcome = member.train(order, send, _encryption(worker, member.replica.spec))
    why = outcome.error or outcome.lost or "it reached its last update"
    log.info("%s, update %d: generation %d ended: %s", job, outcome.update, order.generation, why)
    return outcome


def compute_gradients(
    run_id: str, model: Mapping[str, PackedTensor] | None, step: Step, rank: int, size: int
) -> messages.Gradients:
    """Return this member's rows of the update `step`, with the server's model; if `model` is None, with the model of
    the last request.
    """
    began = time.perf_counter()
    rows = member_of(run_id).gradient_rows(model, step, rank, size)
    return messages.Gradients(rows, time.perf_counter() - began)


def compute_answers(
    run_id: str, model: Mapping[str, PackedTensor], step: Step, shard: int, times: int = 1
) -> list[Answer]:
    """Return this member's answers to one shard of the update `step`, computed `times` times with this model."""
    return member_of(run_id).answers(model, step, shard, times)


def listen(worker: Worker) -> None:
    """Let the worker answer `Calls.request`: its thread calls a function after its earlier work.

    The answer is what the function returns, a dictionary with the error that it raises, or None if the worker closes:
    its threads are shut down, or it has released the member that the function needs.
    """

    async def compute(call: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
        try:
            return await asyncio.wrap_future(worker.executors["default"].submit(_answer, *call))
        except RuntimeError:
            return None

    worker.handlers[messages.COMPUTE] = compute


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return to_serialize(function(*arguments))
    except MemberReleased:
        return None
    except BaseException as error:  # noqa: BLE001  (the driver gets it)
        return error_message(error)


async def ping() -> bool:
    """Return True: the process lives and its event loop runs."""
    return True


async def what_it_does(run_id: str) -> str:
    """Return what the thread that builds the run's member does, such as `importing numpy`; `starting` without one."""
    frame = sys._current_frames().get(_PREPARING.get(run_id, 0))
    return "starting" if frame is None else doing(frame)


async def request_stop(run_id: str, generation: int) -> None:
    """Stop this generation after the current update."""
    member_of(run_id).control.request_stop(generation)


async def cancel_generation(run_id: str, generation: int) -> None:
    """End this generation, because a member has died before the group formed, or hangs."""
    member_of(run_id).control.cancel(generation)


async def how_far(run_id: str) -> messages.MemberOutcome:
    """Return how far this process's member is."""
    return member_of(run_id).outcome()


async def take_snapshot(
    run_id: str, reported: int, evaluated: int
) -> tuple[PackedSnapshot, tuple[messages.Report, ...]]:
    """Return the member's state at its next update boundary, with every report until then that the driver lacks."""
    member = member_of(run_id)
    snapshot = await asyncio.wrap_future(member.control.request_snapshot())
    return pack_snapshot(snapshot), member.unreported(reported, evaluated)


async def take_reports(run_id: str, reported: int, evaluated: int) -> tuple[messages.Report, ...]:
    """Return the member's reports of rows after update `reported` and evaluations after epoch `evaluated`."""
    return member_of(run_id).unreported(reported, evaluated)


async def restore_member(run_id: str, packed: PackedSnapshot) -> bool:
    """Set the member's state; return false if it lacks an evaluation. Raises CheckpointError if it does not fit."""
    # On the event loop, although the member's thread owns the replica: between generations it does not compute.
    replica = member_of(run_id).replica
    replica.restore(unpack_snapshot(packed))
    log.info("%s, update %d: a checkpoint is restored", job_of(run_id), replica.position.update)
    return is_judged(replica)


async def take_result(run_id: str) -> PackedTrained:
    """Return the result of a member that does not train."""
    return pack_trained(trained_of(member_of(run_id).replica))


async def abandon_others(run_id: str, start: int = 0) -> None:
    """Make way for a new driver: drop the members of other runs, which stop after their current update.

    Raises Superseded if a driver of a later start was here.
    """
    _obey(run_id, start)
    _abandon({*_MEMBERS, *_PREPARING} - {run_id})


async def acknowledge_leave() -> None:
    """Confirm that the driver knows of this worker's leaving, and will release it with `forget`."""
    TERMINATION.acknowledge()


async def give_up(fault: str) -> None:
    """End this process, whose device or data reading fails, so that its nanny or Kubernetes replaces it."""
    _end(fault)


async def forget(run_id: str) -> None:
    """Drop the member, which stops after its current update: the run is over, or goes on without this worker."""
    _abandon([run_id])


def _end(why: str) -> None:
    """End this process so that it is replaced."""
    end_when(lambda: True, ClusterError.exit_code, why)


def _obey(run_id: str, start: int) -> None:
    """Take orders for this run from now on. Raises Superseded if a later start has given orders."""
    _STARTS[run_id] = start
    _refuse_earlier(start)


def _refuse_earlier(start: int) -> None:
    latest = max(_STARTS.values(), default=0)
    if start < latest:
        raise Superseded(f"a worker obeys start {latest} of the trainer; this one, start {start}, ends")


def _encryption(worker: Worker, spec: JobSpec) -> Encryption | None:
    """Return TLS contexts with the worker's certificate, whose files each generation reads again; None without TLS.

    In a run's own cluster, members greet each other by TLS, whatever the spec says, and go on without it.
    """
    is_own = isinstance(worker.security, OwnCertificate)
    is_wished = worker.address.startswith("tls://") and spec.exchange.encryption != "Disabled"
    if not (is_own or is_wished):
        return None
    listening = worker.security.get_listen_args("worker")
    dialling = worker.security.get_connection_args("worker")
    return Encryption(listening["ssl_context"], dialling["ssl_context"], is_kept=not is_own)
