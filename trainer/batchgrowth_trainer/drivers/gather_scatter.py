"""GatherScatter: a server gathers the workers' gradients, takes the step and scatters the model, by Dask tasks.

The paper's centralised, synchronous scheme (AdaDamp over Dask; CS744 report, task 2A); the driver is the server.
Each update is one task per worker, so workers join and leave between updates at no cost; losing one costs that update's
gradients.
"""

import math
import time
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import torch
from batchgrowth.plan import Step
from distributed import Future

from batchgrowth_trainer.blame import WorkerFault
from batchgrowth_trainer.crew import pulse
from batchgrowth_trainer.crew.arithmetics import STEPS
from batchgrowth_trainer.crew.connection import SchedulerLost
from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.crew.events import Ended, Event
from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.drivers.scaling import Scaling
from batchgrowth_trainer.drivers.single_process import evaluate_if_due
from batchgrowth_trainer.drivers.workforce import Join
from batchgrowth_trainer.record.packed import pack_all
from batchgrowth_trainer.record.snapshot import Trained
from batchgrowth_trainer.replica.building import build_replica
from batchgrowth_trainer.replica.judging import trained_of
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.stopwatch import Stopwatch
from batchgrowth_trainer.replica.tree import add_up, lay_out
from batchgrowth_trainer.replica.updates import Committed
from batchgrowth_trainer.sinks.events import BytesSent
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import Gradients, Left, UpdateRow

_TICK_SECONDS = 0.05


@dataclass(slots=True)
class _Gathering:
    """One attempt at one update: the task of each member, and how it ended."""

    number: int
    futures: dict[str, Future] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    faults: dict[str, WorkerFault] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    first_ended_at: float = math.inf


class GatherScatterDriver:
    """The server: holds the replica and the optimizer and adds in the fixed order; the workers compute gradients."""

    def __init__(self, run: Run, crew: Crew, scaling: Scaling, replica: Replica) -> None:
        self._run, self._crew, self._scaling, self._replica = run, crew, scaling, replica
        self._number = 0
        self._now: _Gathering | None = None
        self._members: list[str] = []
        self._stopwatch = Stopwatch()
        self._committed_at = time.perf_counter()

    def train(self) -> Trained:
        """Train to the end of the plan or a requested stop. Raises WorkloadError, DataError and ClusterError."""
        run, replica = self._run, self._replica
        saved = run.checkpoint_after(0)
        if saved is not None:
            replica.restore(saved.snapshot)
        try:
            return self._train()
        except SchedulerLost:
            run.save(replica.snapshot())  # the next scheduler's driver resumes from it
            raise

    def _train(self) -> Trained:
        run, replica = self._run, self._replica
        while True:
            if evaluate_if_due(run, replica):
                self._committed_at = time.perf_counter()
            if run.stop_requested() or replica.plan.is_done(replica.position):
                return trained_of(replica)
            if run.checkpoint_due():
                run.save(replica.snapshot())
            self._update(replica.plan.step_at(replica.position))

    def _update(self, step: Step) -> None:
        members = self._scaling.gather(self._handle_events, {})
        if not members:
            return
        began = time.perf_counter()
        self._number += 1
        present = self._now = _Gathering(self._number)
        answers = self._gathered(step, members, present)
        if answers is None:
            self._recover(members, present)
            return
        sent = len(members) * sum(t.nbytes for t in self._replica.model_tensors().values())
        self._run.publish(BytesSent(sent + sum(row.nbytes for answer in answers for row in answer.rows)))
        rows = [torch.from_numpy(np.array(row)).to(self._replica.device) for answer in answers for row in answer.rows]
        self._replica.write_timing(rows[0], self._stopwatch.timing)
        done = self._replica.commit(step, add_up(rows, lay_out(step.shards, len(members))))
        self._record(step, members, done, began, [answer.seconds for answer in answers])

    def _recover(self, members: list[str], present: _Gathering) -> None:
        cause = "a worker was lost"
        for address, fault in present.faults.items():
            cause = f"worker {address} was left out: {fault}"
            self._crew.leave_out(address, fault)
        self._crew.restart_unresponsive([m for m in members if m not in present.faults], self._run.note)
        self._handle_events(_TICK_SECONDS)  # handles its Left, so that the next attempt is without it
        self._run.record_recovery(cause)

    def _gathered(self, step: Step, members: list[str], present: _Gathering) -> list[Gradients] | None:
        """Each member's gradients, in the order of the ranks; None if a member was lost."""
        tensors = pack_all(self._replica.model_tensors())
        patience = self._run.spec.patience_seconds
        models = self._crew.calls.scatter(tensors, members, patience)
        if models is None:
            return None
        for rank, (address, model) in enumerate(zip(members, models, strict=True)):
            order = (self._crew.run_id, model, step, rank, len(members))
            future = self._crew.calls.submit(address, service.compute_gradients, *order)
            present.futures[address] = future
            future.add_done_callback(self._crew.on_end(address, present.number))
        self._record_resize(step, members)
        asked_at = time.monotonic()
        while len(present.ended) < len(members) and not present.gone:
            self._handle_events(_TICK_SECONDS)
            self._crew.check_connected()
            late = [m for m in members if m not in present.ended]
            if time.monotonic() - asked_at > patience:
                self._crew.restart_unresponsive(late, self._run.note)
                asked_at = time.monotonic()
            if time.monotonic() - present.first_ended_at > patience + pulse.STUCK_SECONDS:
                self._crew.restart(late, self._run.note, pulse.STUCK)
                present.first_ended_at = math.inf
        self._now = None
        if present.gone:
            for future in present.futures.values():
                future.cancel()
            return None
        return self._crew.calls.gather(present.futures, patience)

    def _handle_events(self, seconds: float) -> None:
        self._crew.drain_events(seconds, self._handle)
        self._crew.settle(self._replica.position.update)

    def _handle(self, event: Event) -> None:
        self._crew.follow(event)
        present = self._now
        if present is None:
            return
        if isinstance(event, Left) and event.address in present.futures:
            present.gone.add(event.address)
        elif isinstance(event, Ended) and event.generation == present.number:
            fault = event.fault()
            if fault is not None:
                present.faults[event.address] = fault
            if fault is not None or event.is_lost():
                present.gone.add(event.address)
            present.ended.add(event.address)
            present.first_ended_at = min(present.first_ended_at, time.monotonic())

    def _record_resize(self, step: Step, members: list[str]) -> None:
        before, self._members = len(self._members), members
        if before != len(members):
            self._stopwatch = Stopwatch()
        if before not in (0, len(members)):
            pause = time.perf_counter() - self._committed_at
            self._run.record_resize(step.position.update, before, len(members), pause)

    def _record(self, step: Step, members: list[str], done: Committed, began: float, seconds: list[float]) -> None:
        now = self._committed_at = time.perf_counter()
        self._stopwatch.lap(step, len(members), now - began)
        longest, wait = max(seconds), max(seconds) - min(seconds)
        times = longest, max(0.0, now - began - longest), wait
        self._run.record_rows([UpdateRow.now(step, self._replica.plan, done, len(members), times)])


def train(run: Run, join: Join) -> Trained:
    """Train with GatherScatter. See GatherScatterDriver.train."""
    replica = build_replica(run.spec)
    with closing(replica.loaders):
        run.arithmetics.compare_own(STEPS, replica.arithmetic)
        with join() as force:
            return GatherScatterDriver(run, force.crew, force.scaling, replica).train()
