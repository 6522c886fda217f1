"""AllReduce: the workers reduce among themselves, and each takes the optimizer's step (dask-pytorch-ddp, made elastic).

One long Dask task per worker and generation. A generation ends when the plan wants another number of workers, a worker
is ready to join, one is lost, or the run ends; the next begins from the most advanced committed state of its members.
Losing a worker costs the update under way; losing all of them, the updates since the checkpoint.
"""

import math
import time
from collections.abc import Iterator

from batchgrowth_trainer.blame import WorkerFault
from batchgrowth_trainer.crew import pulse
from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.crew.events import Ended, Event
from batchgrowth_trainer.drivers.generation import Generation, backend_of
from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.drivers.scaling import Scaling
from batchgrowth_trainer.drivers.states import States
from batchgrowth_trainer.drivers.workforce import Join
from batchgrowth_trainer.exchange.rendezvous import Rendezvous
from batchgrowth_trainer.exchange.seats import seats
from batchgrowth_trainer.record.snapshot import Trained
from batchgrowth_trainer.sinks.events import BytesSent, Compressed, ReplicasApart, Stale
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import EvaluationReport, GenerationBegan, Left, Order, Outcome, RowsReport

_TICK_SECONDS = 0.05
_WATCH_SECONDS = 0.25  # between two looks at a generation that reports nothing; each look takes time from its members
_STOP_RETRY_SECONDS = 5.0
_SAVING_SECONDS = 20.0  # how long the members that answer have to end a generation in which others hang
_SILENCE_SECONDS = 10.0  # after which the members of a generation are pinged


class AllReduceDriver:
    """Runs generation after generation until the plan is done."""

    def __init__(self, run: Run, crew: Crew, scaling: Scaling, host: str) -> None:
        self._run, self._crew, self._scaling, self._host = run, crew, scaling, host
        self._number = 0
        self._states = States(run, crew, self._on_report)
        self._ended_at = time.monotonic()  # when the last generation ended
        self._size = 0  # members of the last generation that began
        self._now: Generation | None = None
        self._rendezvous: Rendezvous | None = None

    def train(self) -> Trained:
        """Train to the end of the plan or a requested stop. Raises WorkloadError, DataError and ClusterError."""
        while True:
            members = self._scaling.gather(self._handle_events, self._states.updates)
            if members and not self._states.catch_up(members):
                self._handle_events(_TICK_SECONDS)
                continue
            if self._run.stop_requested() or self._is_done():
                trained = self._states.trained()
                if trained is not None:
                    return trained
                self._states.updates.clear()
                self._run.record_recovery("the last state was lost with its worker")
            else:
                self._one_generation(members)

    def _is_done(self) -> bool:
        run = self._run
        return run.plan.is_done(run.position) and self._states.is_judged and not run.evaluation_due(run.position)

    def _one_generation(self, members: list[str]) -> None:
        self._number += 1
        present = self._now = Generation(self._number, members)
        waits_for_all = self._run.spec.exchange.entry.promise != "Nondeterministic"  # as NCCL must
        by_nccl = waits_for_all and backend_of([self._crew.ready[address] for address in members]) == "nccl"
        self._rendezvous = Rendezvous(self._host) if by_nccl else None
        try:
            for address, order in zip(members, self._orders(), strict=True):
                future = self._crew.calls.submit(address, service.train_generation, self._crew.run_id, order)
                present.futures[address] = future
                future.add_done_callback(self._crew.on_outcome(address, self._number))
            while not present.over:
                self._handle_events(_WATCH_SECONDS)
                self._supervise(present)
        finally:
            self._close_rendezvous()
        self._states.expect_none()
        self._now = None
        self._ended_at = time.monotonic()
        self._conclude(present)

    def _orders(self) -> Iterator[Order]:
        """The order for each member, by rank."""
        assert self._now is not None
        meeting, run = self._rendezvous, self._run
        doors = [self._crew.ready[address].door for address in self._now.members]
        store = (meeting.host, meeting.port) if meeting else None
        until = self._scaling.ends_at(len(doors))
        all_connected = run.spec.exchange.entry.all_connected
        for seat in seats(doors, self._now.token, run.spec.patience_seconds, store, all_connected=all_connected):
            yield Order(seat, self._now.number, until, evaluated=run.story.evaluated, reported=run.reported)

    def _supervise(self, present: Generation) -> None:
        self._scaling.tick(present.members)
        asked = time.monotonic() - present.asked_at < _STOP_RETRY_SECONDS
        if not asked and not present.outcomes and self._should_stop(present):
            present.stopping, present.asked_at = True, time.monotonic()
            self._crew.calls.notify(service.request_stop, self._crew.run_id, present.number, worker=present.members[0])
        due = self._run.checkpoint_due() and not present.stopping and not present.outcomes
        self._states.save_while_it_trains(present.members[0], due=due)
        if time.monotonic() - present.heard_at > _SILENCE_SECONDS:
            present.heard_at = time.monotonic()
            self._crew.ask_whether_alive(present.members)
        self._restart_hung(present)
        self._restart_stuck(present)

    def _restart_hung(self, present: Generation) -> None:
        """Restart workers that hang, members only after the newest state of those that answer is saved.

        A member gives its state once its generation is over, so the hung end it for all; those that do not end in time,
        such as those that share a group by NCCL, are not waited for.
        """
        found = self._crew.hung()
        self._crew.restart(found.difference(present.members), self._run.note)
        if found := found.intersection(present.members):
            present.hung |= found
            present.hung_at = min(present.hung_at, time.monotonic())
            self._cancel(present)
        others = self._crew.answering(present.members) - present.hung - present.outcomes.keys()
        if not present.hung or (others and time.monotonic() - present.hung_at < _SAVING_SECONDS):
            return
        self._save(present)
        self._crew.restart(present.hung, self._run.note)
        present.hung.clear()
        present.hung_at = math.inf

    def _save(self, present: Generation) -> None:
        """Save the newest state of the members that have ended, before others are restarted."""
        self._states.take(present.remaining)
        self._states.save_newest(present.remaining.keys() - present.errors)

    def _restart_stuck(self, present: Generation) -> None:
        """Restart members whose thread hangs, though they answer: the others have long ended this generation."""
        if time.monotonic() - present.cancelled_at > self._run.spec.patience_seconds + pulse.STUCK_SECONDS:
            present.cancelled_at = math.inf
            stuck = [member for member in present.members if member not in present.outcomes]
            self._save(present)
            self._crew.restart(stuck, self._run.note, pulse.STUCK)

    def _should_stop(self, present: Generation) -> bool:
        return self._run.stop_requested() or self._scaling.regroup_due(present.members)

    def _handle_events(self, seconds: float) -> None:
        self._crew.drain_events(seconds, self._handle)
        self._crew.settle(self._run.position.update)

    def _handle(self, event: Event) -> None:
        self._crew.follow(event)
        match event:
            case Left(address):
                self._states.updates.pop(address, None)
                if self._now is not None and address in self._now.members:
                    self._end(self._now, address, None)
            case RowsReport() | EvaluationReport():
                self._on_report(event)
            case GenerationBegan():
                self._on_began(event)
            case Ended():
                self._on_ended(event)

    def _on_ended(self, event: Ended) -> None:
        if self._now is not None and event.generation == self._now.number:
            self._end(self._now, event.address, None if event.is_lost() else event.outcome)

    def _end(self, present: Generation, address: str, outcome: Outcome | None) -> None:
        present.heard_at = time.monotonic()
        present.outcomes.setdefault(address, outcome)
        if outcome is None:
            present.futures[address].cancel()
        if outcome is None or outcome.lost or outcome.error:
            self._cancel(present)

    def _cancel(self, present: Generation) -> None:
        """Unblock the members that still wait for one that is lost; a group that has formed notices by itself."""
        self._close_rendezvous()
        if present.cancelled_at == math.inf:
            present.cancelled_at = time.monotonic()
            for address in present.members:
                if address not in present.outcomes:
                    self._crew.calls.notify(
                        service.cancel_generation, self._crew.run_id, present.number, worker=address
                    )

    def _close_rendezvous(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _on_report(self, report: RowsReport | EvaluationReport) -> None:
        if self._now is not None:
            self._now.heard_at = time.monotonic()
        if isinstance(report, RowsReport):
            self._run.record_rows(report.rows)
            self._run.publish(BytesSent(report.bytes_sent))
            if report.distance is not None:
                self._run.publish(ReplicasApart(report.distance))
            if report.staleness is not None:
                self._run.publish(Stale(report.staleness.largest, report.staleness.mean))
            if report.compression_error is not None:
                self._run.publish(Compressed(report.compression_error))
        else:
            self._run.record_evaluation(report.position, report.values, report.evaluated_at, report.end)

    def _on_began(self, event: GenerationBegan) -> None:
        if self._now is not None and event.generation == self._now.number:
            self._now.heard_at = time.monotonic()
            self._now.pauses[event.rank] = event.pause
            self._record_resize(self._now, event.update)

    def _record_resize(self, present: Generation, update: int) -> None:
        pause, size = present.pause(time.monotonic() - self._ended_at), len(present.members)
        if pause is None:
            return
        if self._size not in (0, size):
            self._run.record_resize(update, self._size, size, pause)
        self._size = size

    def _conclude(self, present: Generation) -> None:
        for address, error in present.errors.items():
            if not isinstance(error, WorkerFault):
                self._states.take_reports(address)
                raise error
        self._states.take(present.remaining)
        if self._states.updates:
            self._run.reach(max(self._states.updates.values()))
        self._states.release(self._crew.leaving | present.errors.keys())
        self._leave_out(present)
        if present.lost:
            self._run.record_recovery(present.lost)
            self._states.restart_unresponsive([*present.remaining.keys() - present.errors])

    def _leave_out(self, present: Generation) -> None:
        self._crew.settle(self._run.position.update)
        for address, fault in present.errors.items():
            assert isinstance(fault, WorkerFault)
            self._crew.leave_out(address, fault)


def train(run: Run, join: Join) -> Trained:
    """Train with AllReduce. See AllReduceDriver.train."""
    with join() as force:
        return AllReduceDriver(run, force.crew, force.scaling, force.host).train()
