"""GatherScatter: a server gathers the workers' gradients, takes the step and scatters the model.

The paper's centralised, synchronous scheme (AdaDamp over Dask; CS744 report, task 2A); the driver is the server.
Each update is one request per worker, by Dask's connections, with the model in it; the answer is the gradients. So
workers join and leave between updates at no cost; losing one costs that update's gradients. With `backups`, an idle
worker repeats the part of a slow one.
"""

import math
import time
from collections import deque
from contextlib import closing
from statistics import median

import numpy as np
import torch
from batchgrowth.plan import Step

from batchgrowth_trainer.crew import pulse
from batchgrowth_trainer.crew.arithmetics import STEPS
from batchgrowth_trainer.crew.connection import SchedulerLost
from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.crew.events import Event
from batchgrowth_trainer.drivers.gathering import Gathering
from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.drivers.scaling import Scaling
from batchgrowth_trainer.drivers.single_process import evaluate_if_due
from batchgrowth_trainer.drivers.stragglers import Stragglers
from batchgrowth_trainer.drivers.workforce import Join
from batchgrowth_trainer.record.packed import Packed, pack_all
from batchgrowth_trainer.record.snapshot import Trained
from batchgrowth_trainer.replica.building import build_replica
from batchgrowth_trainer.replica.judging import trained_of
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.stopwatch import Stopwatch
from batchgrowth_trainer.replica.tree import add_up, lay_out
from batchgrowth_trainer.replica.updates import Committed
from batchgrowth_trainer.sinks.events import BackedUp, BytesSent
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import Gradients, UpdateRow

_TICK_SECONDS = 0.05
_PACES = 9  # of the last updates; their median is the usual one, though one or the other was slow


class GatherScatterDriver:
    """The server: holds the replica and the optimizer and adds in the fixed order; the workers compute gradients."""

    def __init__(self, run: Run, crew: Crew, scaling: Scaling, replica: Replica) -> None:
        self._run, self._crew, self._scaling, self._replica = run, crew, scaling, replica
        self._number = self._size = 0
        self._now: Gathering | None = None
        self._paces = deque[float](maxlen=_PACES)
        self._late = Stragglers(crew, run.note, run.spec.patience_seconds)
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
        team = self._scaling.gather(self._handle_events, {})
        free = self._free(team)
        members = [worker for worker in free if not self._late.rests(worker)] or free
        if not members:
            self._handle_events(_TICK_SECONDS)
            return
        began = time.perf_counter()
        self._number += 1
        layout = lay_out(step.shards, len(members))
        usual = median(self._paces) if self._paces else None
        present = self._now = Gathering(self._number, [hi - lo for lo, hi in layout.runs], usual)
        answers = self._gathered(step, members, len(team))
        self._now = None
        if answers is None:
            self._recover(members, present)
            return
        pace = present.pace
        assert pace is not None
        self._paces.append(pace)
        self._part_with(present)
        sent = len(present.asked) * sum(t.nbytes for t in self._replica.model_tensors().values())
        self._run.publish(BytesSent(sent + sum(row.nbytes for answer in answers for row in answer.rows)))
        rows = [torch.from_numpy(np.array(row)).to(self._replica.device) for answer in answers for row in answer.rows]
        self._replica.write_timing(rows[0], self._stopwatch.timing)
        done = self._replica.commit(step, add_up(rows, layout))
        seconds = [c.delay + a.seconds for c, a in zip(present.first_copies(), answers, strict=True)]
        self._record(step, members, done, began, seconds)

    def _recover(self, members: list[str], present: Gathering) -> None:
        cause = "a worker was lost"
        for address, fault in present.faults.items():
            cause = f"worker {address} was left out: {fault}"
            self._crew.leave_out(address, fault)
        self._crew.restart_unresponsive([m for m in members if m not in present.faults], self._run.note)
        self._handle_events(_TICK_SECONDS)  # handles its Left, so that the next attempt is without it
        self._run.record_recovery(cause)

    def _part_with(self, present: Gathering) -> None:
        """Leave out the workers whose part of a complete update came from another: the late ones, and the faulty."""
        self._late.after(present.under_way(), present.in_time())
        for address, fault in present.faults.items():
            self._run.note(f"worker {address} was left out: {fault}")
            self._crew.leave_out(address, fault)
        if present.num_backups:
            first = sum(copy.is_backup for copy in present.first_copies())
            self._run.publish(BackedUp(first, present.num_backups - first))

    def _gathered(self, step: Step, members: list[str], team: int) -> list[Gradients] | None:
        """The gradients of each part, in the order of the ranks; None if one was lost."""
        present, size = self._now, len(members)
        assert present is not None
        model = pack_all(self._replica.model_tensors())
        for rank, address in enumerate(members):
            self._request(step, rank, size, address, model)
        self._record_resize(step, team)
        while not present.is_over:
            self._handle_events(_TICK_SECONDS)
            self._crew.check_connected()
            if self._run.spec.exchange.settings.backups:
                overdue = present.overdue()
                for rank, address in zip(overdue, self._idle(present) if overdue else (), strict=False):
                    self._request(step, rank, size, address, model)
            self._restart_hung(present)
        if present.is_lost:
            return None
        return [copy.request.result for copy in present.first_copies()]

    def _free(self, team: list[str]) -> list[str]:
        return [worker for worker in team if worker not in self._late]

    def _idle(self, present: Gathering) -> list[str]:
        """The workers that may repeat a part; among them those that came, or came back, since the update began."""
        idle = present.idle(self._free(self._scaling.team({})))
        return [address for address in idle if address in self._crew.ready]

    def _request(self, step: Step, rank: int, size: int, address: str, model: dict[str, Packed]) -> None:
        """Have the worker compute the part of this rank, with this model, which it is given once in an update."""
        assert self._now is not None
        order = (self._crew.run_id, None if address in self._now.asked else model, step, rank, size)
        on_end = self._crew.on_end(address, self._now.number)
        request = self._crew.calls.request(address, service.compute_gradients, *order, then=on_end)
        self._now.add(rank, address, request)

    def _restart_hung(self, present: Gathering) -> None:
        """Restart members that do not answer, and those that do not end though others have long ended."""
        patience, now = self._run.spec.patience_seconds, time.monotonic()
        if now - present.answered_at > patience:
            self._crew.restart_unresponsive([copy.worker for copy in present.under_way()], self._run.note)
            present.answered_at = time.monotonic()
        if now - present.first_ended_at > patience + pulse.STUCK_SECONDS:
            self._crew.restart([copy.worker for copy in present.under_way()], self._run.note, pulse.STUCK)
            present.first_ended_at = math.inf

    def _handle_events(self, seconds: float) -> None:
        self._crew.drain_events(seconds, self._handle)
        self._crew.settle(self._replica.position.update)
        self._late.watch()

    def _handle(self, event: Event) -> None:
        self._crew.follow(event)
        self._late.follow(event)
        if self._now is not None:
            self._now.follow(event)

    def _record_resize(self, step: Step, size: int) -> None:
        before, self._size = self._size, size
        if before != size:
            self._stopwatch = Stopwatch()
        if before not in (0, size):
            pause = time.perf_counter() - self._committed_at
            self._run.record_resize(step.position.update, before, size, pause)

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
