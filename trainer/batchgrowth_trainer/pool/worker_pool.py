"""The workers of a Dask cluster as a run sees them: joining, ready, leaving, gone, and which of them may compute."""

import logging
import queue
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from batchgrowth.errors import BatchGrowthError, Superseded
from batchgrowth.spec import JobSpec
from distributed import Client, Future

from batchgrowth_trainer.pool.arithmetics import Arithmetics
from batchgrowth_trainer.pool.calls import Calls, WorkerRequest, drop
from batchgrowth_trainer.pool.connection import LOST, SchedulerLost
from batchgrowth_trainer.pool.membership import (
    Ended,
    Event,
    Heartbeat,
    Membership,
    Note,
    Ready,
    Save,
    Unready,
    WorkerRestarts,
)
from batchgrowth_trainer.pool.starts import Preparing
from batchgrowth_trainer.pool.takeover import Fence, Takeover
from batchgrowth_trainer.user_errors import WorkerFault, described
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.addresses import host_and_port
from batchgrowth_trainer.worker.messages import Joined, Leaving, Left, Prepared, decode

_ANSWER_SECONDS = 5.0  # after which a scheduler that has not answered counts as unresponsive
_POLL_SECONDS = 0.02
_GONE_SECONDS = 20.0  # the longest wait for the end of a process that was told to end
MOST_FAULTS = 3  # after which a worker computes only if there is no other

log = logging.getLogger(__name__)


class WorkerPool:
    """The workers that are ready, in the order in which they came; every change is put into `events`.

    membership.py reads what Dask's scheduler knows, and this class keeps what follows from it. A worker registers with
    the scheduler, prepares its member, and is ready; it trains generation after generation, as its driver orders, until
    it is leaving or gone. Every event of it arrives in one queue, and `follow` takes it, so that only the driver's loop
    decides.
    """

    def __init__(
        self,
        client: Client,
        run_id: str,
        spec: JobSpec,
        paths: Sequence[str],
        stop_requested: Callable[[], bool] = lambda: False,
        fence: Fence | None = None,
        function: bytes = b"",
        arithmetics: Arithmetics | None = None,
    ) -> None:
        self.client = client
        self.run_id = run_id
        self._stop_requested = stop_requested
        self._connection = client.scheduler_comm  # a reconnection replaces it
        self._topic = service.topic(run_id)
        self._update = 0
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.calls = Calls(client, self.check_connected)
        self._takeover = Takeover(client, self.calls, fence)
        self._membership = Membership(client, self.calls, self.events.put)
        self._heartbeat = Heartbeat(self.calls)
        self._restarts = WorkerRestarts(client, lambda a: a in self._admission or a in self.leaving)
        self._arguments = (run_id, spec, tuple(paths), self._takeover.start, function)
        self._preparing: dict[str, Future] = {}
        self._admission = Admission(arithmetics or Arithmetics())
        self.ready = self._admission.ready
        self.leaving: set[str] = set()  # got SIGTERM; they train to the end of their generation
        self._released: set[str] = set()
        self.preparing = Preparing(self.calls, run_id)
        self.known: set[str] = set()  # workers that were ready once, or that were left out: why they end is known
        self._failed: dict[str, BaseException] = {}  # registered workers whose member cannot be built, and why
        self.trouble = ""  # why the last worker could not be prepared, unless the workload is at fault

    def open(self) -> None:
        """Begin to watch the workers, and prepare all that are registered. Raises SchedulerLost, Superseded."""
        self._takeover.open()
        self._membership.open(self._topic, self._on_event)

    def close(self) -> None:
        """Stop watching, and let the workers drop their members."""
        try:
            self.check_connected()
            for preparing in self._preparing.values():
                drop(preparing)  # a worker that has not begun builds no member; one that has drops it when asked
            self.calls.ask(service.forget, self.run_id, workers=[*self.registered], seconds=_ANSWER_SECONDS)
            self._membership.close(self._topic)
        except (SchedulerLost, Superseded, OSError):
            return  # nothing of this run is left
        finally:
            self.calls.close()

    def check_connected(self) -> None:
        """Poll the scheduler. Raises Superseded, and SchedulerLost if that is lost or blocks a requested stop."""
        if self.client.status != "running" or self.client.scheduler_comm is not self._connection:
            raise SchedulerLost(LOST)  # a reconnected scheduler has lost the run's tasks
        self._membership.poll()
        self._takeover.poll()
        if self._membership.silence() > _ANSWER_SECONDS and self._stop_requested():
            raise SchedulerLost(LOST)

    def drain_events(self, seconds: float, handle: Callable[[Event], None]) -> None:
        """Handle all queued events, waiting up to `seconds` for the first."""
        try:
            event = self.events.get(timeout=seconds)
            while True:
                handle(event)
                event = self.events.get_nowait()
        except queue.Empty:
            return

    def follow(self, event: Event) -> None:
        """If the event is about a worker's life, move the worker to its next state.

        Raises the BatchGrowthError of a workload that could not be loaded. A WorkerFault is raised only when it recurs;
        see `leave_out`.
        """
        match event:
            case Joined(address):
                log.info("%s: worker %s has registered", self._where, address)
                self._prepare(address)
            # A worker that has left, or is leaving, is not in `_preparing` any more: its late answer is ignored.
            case Ready(address, prepared) if address in self._preparing:
                del self._preparing[address]
                self.preparing.end(address)
                if prepared is not None:
                    self.calls.allow_for(prepared.state_bytes)
                    self._admission.add(address, prepared)
                    self.known.add(address)
                    refusal = self._admission.arithmetics.refusal(address)
                    self.trouble = refusal or self.trouble
                    joins = "joins" if address in self.ready else f"is held back: {refusal or 'it had a fault'}"
                    log.info("%s: worker %s, %s on %s, %s", self._where, address, prepared.name, prepared.host, joins)
                elif address in self.registered:
                    log.debug("%s: the answer of worker %s was lost; it is prepared again", self._where, address)
                    self._prepare(address)
            case Unready(address, error):
                self._preparing.pop(address, None)
                self.preparing.end(address)
                if isinstance(error, WorkerFault):
                    self.leave_out(address, error)
                elif isinstance(error, BatchGrowthError):
                    raise error
                else:
                    self._failed[address] = error
                    self.trouble = f"{address}: {type(error).__name__}: {error}"
                    log.warning("%s: worker %s", self._where, self.trouble)
            case Leaving(address):
                log.info("%s: worker %s is leaving: it got SIGTERM", self._where, address)
                self._admission.remove(address)
                self._preparing.pop(address, None)
                # The worker stays registered, and may still train, until `release_leaving` lets it go.
                self.leaving.add(address)
                self.calls.notify(service.acknowledge_leave, worker=address)
            case Left(address):
                log.info("%s: worker %s is gone", self._where, address)
                self._admission.remove(address)
                self._failed.pop(address, None)
                self.preparing.end(address)
                self._preparing.pop(address, None)
                self.leaving.discard(address)
                self._released.discard(address)

    def _prepare(self, address: str) -> None:
        if address in self._preparing or address in self._admission:
            return
        # First, since the member of another run, whose driver is gone, would keep the worker's only thread busy.
        self.calls.notify(service.abandon_others, self.run_id, self._takeover.start, worker=address)
        future = self.calls.submit(address, service.prepare_member, *self._arguments)
        self._preparing[address] = future
        self.preparing.begin(address)
        future.add_done_callback(lambda done: self._on_prepared(address, done))

    def _on_prepared(self, address: str, future: Future) -> None:
        # Dask has one thread for all callbacks: waiting here for the result of a dead worker would block the others.
        if future.status == "finished":
            self.calls.fetch(future, lambda prepared: self.events.put(Ready(address, prepared)))
        elif future.status == "error":
            self.events.put(Unready(address, future.exception()))

    def _on_event(self, event: tuple[float, Mapping[str, Any]]) -> None:
        message = decode(event[1])
        # `Membership` also polls the scheduler's list, so it may know already, and reports each change once.
        if isinstance(message, Joined):
            self._membership.joined(message.address)
        elif isinstance(message, Left):
            self._membership.left(message.address)
        else:
            self.events.put(message)

    def on_end(self, address: str, generation: int) -> Callable[[Future | WorkerRequest], None]:
        """Return a callback that queues the end of this worker's task or request."""
        return lambda done: self.events.put(Ended(address, generation, done))

    def on_outcome(self, address: str, generation: int) -> Callable[[Future], None]:
        """Return a callback that queues the end of this worker's task together with its outcome."""

        def ended(done: Future) -> None:
            if done.status == "finished":
                self.calls.fetch(done, lambda outcome: self.events.put(Ended(address, generation, done, outcome)))
            else:
                self.events.put(Ended(address, generation, done))

        return ended

    def leave_out(self, address: str, fault: WorkerFault) -> None:
        """End the worker's process, so that it is replaced; until then, others compute its share.

        Raises the fault if another worker had the same one at this update, or if this is the only worker and had it
        before.
        """
        self.known.add(address)
        log.info("%s: worker %s is left out, so that it is restarted: %s", self._where, address, fault)
        ready = self._admission.remove(address)
        worker = ready.name if ready else host_and_port(address)[0]
        self.trouble = f"{address}: {fault}"
        alone = not self.registered - {address}
        self._admission.accuse(worker, fault, alone=alone, was_ready=ready is not None)
        self.calls.notify(service.give_up, str(fault), worker=address)

    def name_of(self, address: str) -> str:
        """Return the name of a worker, which is its pod's name if it has a pod; its host if the worker is not ready."""
        prepared = self.ready.get(address)
        return host_and_port(address)[0] if prepared is None else prepared.name

    def replace(self, addresses: Collection[str], why: str, handle_events: Callable[[float], None]) -> None:
        """End these workers' processes, so that they are replaced, and wait a while until they are gone.

        A replacement may compute at once, whatever its name is.
        """
        for address in addresses:
            log.info("%s: worker %s is restarted: %s", self._where, address, why)
            self._admission.remove(address)
            self.calls.notify(service.give_up, why, worker=address)
        ends = time.monotonic() + _GONE_SECONDS
        while self.registered.intersection(addresses) and time.monotonic() < ends:
            self.check_connected()
            handle_events(_POLL_SECONDS)

    def admit_held(self, update: int) -> None:
        """Admit workers that were held back for a fault at an update before `update`, the current one."""
        self._update = update
        self._admission.admit_held(update)

    def release_leaving(self, busy: Collection[str]) -> None:
        """Release the leaving workers that are not `busy` training, so that they exit."""
        for address in self.leaving.difference(busy, self._released):
            log.debug("%s: worker %s is released", self._where, address)
            self._released.add(address)
            self.calls.notify(service.forget, self.run_id, worker=address)

    @property
    def is_preparing(self) -> bool:
        """Return whether a registered worker is about to be ready."""
        return bool(self._preparing)

    def check_failed(self) -> None:
        """Raise the first error if there are registered workers and none of them can build its member."""
        if self.registered and self.registered <= self._failed.keys():
            error = next(iter(self._failed.values()))
            raise BatchGrowthError(described("preparing a worker", error)) from error

    @property
    def registered(self) -> set[str]:
        """Return the registered workers, ready or not."""
        return self.calls.registered

    def in_order(self, updates: Mapping[str, int]) -> list[str]:
        """Return the ready workers, the most advanced by `updates` first.

        Of equally advanced workers, the ones with the job's arithmetic come first; then workers whose name is a number,
        by number, and the others by arrival.
        """
        best = max(updates.values(), default=0)

        def place(address: str) -> tuple[bool, bool, int, int]:
            name = self.ready[address].name
            behind = updates.get(address, 0) < best
            rank = (0, int(name)) if name.isdigit() else (1, 0)
            return behind, self._admission.arithmetics.differs(address), *rank

        return sorted(self.ready, key=place)

    def ask_whether_alive(self, addresses: Collection[str]) -> None:
        """Ask these workers and the ready workers for a sign of life, without waiting for their answers; see `hung`."""
        self._heartbeat.ask({*addresses, *self.ready})

    def hung(self) -> set[str]:
        """Return the workers that hang instead of being slow, each only once."""
        return self._heartbeat.hung(stopping=self._stop_requested())

    def answering(self, addresses: Collection[str]) -> set[str]:
        """Return the registered workers among these that answered when they were last asked."""
        return self.registered.intersection(addresses) - self._heartbeat.silent()

    def restart_unresponsive(self, addresses: Collection[str], note: Note, save: Save = lambda _: None) -> None:
        """Wait until each registered worker among these has answered, or hangs and is restarted after `save`."""
        self.ask_whether_alive(addresses)
        while self._heartbeat.silent().intersection(addresses):
            self.check_connected()
            if hung := self.hung():
                save(self.answering({*addresses, *self.ready}) - hung)
                self.restart(hung, note)
            time.sleep(_POLL_SECONDS)

    def restart(self, addresses: Iterable[str], note: Note, why: str = "does not answer") -> None:
        """Restart the registered workers among these. They do not count as ready until they are ready again."""
        for address in self.registered.intersection(addresses):
            note(f"worker {address} {why}; restarting it")
            self._membership.left(address)
            self.calls.start(self._restarts.restart(address))

    @property
    def _where(self) -> str:
        """Return the job and the update as the beginning of a log line."""
        return f"{service.job_of(self.run_id)}, update {self._update:,}"


class Admission:
    """Which workers may compute: ready workers that are not suspects and whose arithmetic is not refused.

    `ready` are these workers, in the order in which they came; others are held back.
    """

    def __init__(self, arithmetics: Arithmetics) -> None:
        self.ready: dict[str, Prepared] = {}
        self.arithmetics = arithmetics
        self._held: dict[str, Prepared] = {}
        self._suspects = Suspects()
        arithmetics.forget_workers()

    def __contains__(self, address: str) -> bool:
        """Return whether the worker is prepared, even if it is held back."""
        return address in self.ready or address in self._held

    def add(self, address: str, prepared: Prepared) -> None:
        """Add a prepared worker."""
        self.arithmetics.compare(address, prepared)
        if self.arithmetics.refusal(address) or self._suspects.is_suspect(prepared.name):
            self._held[address] = prepared
        else:
            self.ready[address] = prepared

    def remove(self, address: str) -> Prepared | None:
        """Remove a worker that is gone or about to go, and return it if it was ready."""
        self._held.pop(address, None)
        self.arithmetics.left(address)
        return self.ready.pop(address, None)

    def accuse(self, worker: str, fault: WorkerFault, *, alone: bool, was_ready: bool) -> None:
        """Note the fault, or raise it if Suspects.accuse finds that the job is at fault and not the worker."""
        self._suspects.accuse(worker, fault, alone=alone, last=not (was_ready or self.ready))

    def admit_held(self, update: int) -> None:
        """Admit a held-back worker if that update is past its fault, or if no other worker is ready.

        Before the first update, a refused worker replaces the first worker if that is gone. Later, one that was held
        back for its code does so if every worker with the job's code is gone.
        """
        self._suspects.forget_before(update)
        refused: list[str] = []
        if not self.ready:
            refused = [address for address in self._held if self.arithmetics.refusal(address)]
        adopted = [address for address in refused if self.arithmetics.may_adopt(address, self._held[address])]
        for first in adopted[:1] if update else refused[:1]:
            if self.arithmetics.has_other_code(first):
                self.arithmetics.adopt_code(first, self._held[first])
            else:
                self.arithmetics.begin_with(self._held[first])
            for address, prepared in self._held.items():
                self.arithmetics.compare(address, prepared)
        for address, prepared in list(self._held.items()):
            held = self._suspects.is_suspect(prepared.name) and self.ready
            if not held and not self.arithmetics.refusal(address):
                self.ready[address] = self._held.pop(address)


class Suspects:
    """The workers that had a fault at the current update.

    The same fault on another worker counts as the job's.
    """

    def __init__(self) -> None:
        self._update = -1
        self._seen: dict[str, set[str]] = {}  # what failed at this update -> the workers on which it did
        self._faults: Counter[str] = Counter()

    def accuse(self, worker: str, fault: WorkerFault, *, alone: bool, last: bool = False) -> None:
        """Note the fault. Raises it if another worker had the same fault, or if this worker had it and is alone.

        If no worker is left that could compute, as `last` says, a worker has MOST_FAULTS tries.
        """
        before = self._seen.setdefault(fault.what, set())
        only = alone and set(self._faults) <= {worker}
        if before - {worker} or (before and only) or (last and self._faults[worker] >= MOST_FAULTS):
            raise fault
        before.add(worker)
        self._faults[worker] += 1

    def forget_before(self, update: int) -> None:
        """Forget faults at earlier updates, since other workers have computed these updates."""
        if update > self._update:
            self._update = update
            self._seen.clear()

    def is_suspect(self, worker: str) -> bool:
        """Return whether other workers, if any, should compute the current update, or every update, instead."""
        return self._faults[worker] >= MOST_FAULTS or any(worker in workers for workers in self._seen.values())
