"""The elastic driver of the exchanges between workers.

It forms a generation of members, and the next generation when a worker joins, leaves or dies.
"""

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from batchgrowth.errors import BatchGrowthError
from distributed import Future

from batchgrowth_trainer.blame import WorkerFault
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.drivers.scaling import Join, Scaling
from batchgrowth_trainer.exchange.connections import TOKEN_BYTES, seats
from batchgrowth_trainer.exchange.group import Rendezvous
from batchgrowth_trainer.record.snapshot import PackedSnapshot, Trained, pack_snapshot, unpack_snapshot, unpack_trained
from batchgrowth_trainer.sinks.events import BytesSent, Compressed, ReplicasApart, Stale
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import (
    EvaluationReport,
    GenerationBegan,
    Left,
    MemberOutcome,
    Order,
    Prepared,
    Report,
    RowsReport,
)
from batchgrowth_trainer.workers import health
from batchgrowth_trainer.workers.calls import Asked
from batchgrowth_trainer.workers.crew import Crew
from batchgrowth_trainer.workers.registered import Ended, Event

# --- One generation as its driver sees it: its members, and how each of them ended ---


@dataclass(slots=True)
class Generation:
    """Members in the order of their ranks; the outcome of a member that is gone is None."""

    number: int
    members: list[str]
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES), repr=False)
    cancelled_at: float = math.inf  # when those that form it were last requested to stop waiting
    heard_at: float = field(default_factory=time.monotonic)  # when a member last reported or ended
    futures: dict[str, Future] = field(default_factory=dict)
    outcomes: dict[str, MemberOutcome | None] = field(default_factory=dict)
    pauses: dict[int, float | None] = field(default_factory=dict)
    stopping: bool = False
    asked_at: float = -math.inf  # when it was last requested to stop
    hung: set[str] = field(default_factory=set)  # workers that are restarted once the others' state is saved
    hung_at: float = math.inf  # when the first of them was found

    @property
    def over(self) -> bool:
        """Whether every member has ended or gone."""
        return len(self.outcomes) == len(self.members)

    @property
    def gone(self) -> list[str]:
        """Members that died or lost their connection."""
        return [address for address, outcome in self.outcomes.items() if outcome is None]

    @property
    def errors(self) -> dict[str, BatchGrowthError]:
        """The errors with which members ended."""
        ended = ((address, outcome.error) for address, outcome in self.outcomes.items() if outcome is not None)
        return {address: error for address, error in ended if error is not None}

    @property
    def lost(self) -> str:
        """Why a peer was lost; empty if none was."""
        for address, error in self.errors.items():
            return f"worker {address} was left out: {error}"
        if self.gone:
            return f"{len(self.gone)} of {len(self.members)} workers were lost"
        reasons = (outcome.lost for outcome in self.outcomes.values() if outcome is not None and outcome.lost)
        return next(reasons, "")

    @property
    def remaining(self) -> dict[str, MemberOutcome]:
        """The outcome of each remaining member."""
        return {address: outcome for address, outcome in self.outcomes.items() if outcome is not None}

    def pause(self, otherwise: float) -> float | None:
        """The longest pause of a member, in seconds, `otherwise` if all are newcomers; None until all have begun."""
        if len(self.pauses) < len(self.members):
            return None
        return max((pause for pause in self.pauses.values() if pause is not None), default=otherwise)


def backend_of(members: Sequence[Prepared]) -> str:
    """The backend of a group of these members: `nccl` if each has its own GPU, else `tcp`.

    Pods that share a GPU see it with one UUID.
    """
    gpus = {one.gpu for one in members}
    return "nccl" if all(one.gpu for one in members) and len(gpus) == len(members) else "tcp"


# --- The members' states as their driver knows them: how far each is, and what resuming from them takes ---


class States:
    """`updates` counts each member's committed updates; `on_report` receives the reports that are fetched.

    A member that lost its peers while it evaluated is not judged: its state lacks what follows from the evaluation.
    """

    def __init__(self, run: RunState, crew: Crew, on_report: Callable[[Report], None]) -> None:
        self._run, self._crew, self._on_report = run, crew, on_report
        self.updates: dict[str, int] = {}
        self._unjudged: set[str] = set()
        self._coming: Asked | None = None  # the state of a member that trains

    def catch_up(self, members: list[str]) -> bool:
        """Restore the newest checkpoint if no member is as far, and fetch every missing report; False if one is lost.

        So the history has no gap: a member that trains on keeps the reports that never arrived, and a checkpoint is
        written only with the reports that led to it.
        """
        best = max(self.updates.get(address, 0) for address in members)
        saved = self._run.checkpoint_after(best)
        if saved is not None:
            packed = pack_snapshot(saved.snapshot)
            answers = self._crew.calls.ask(service.restore_member, self._crew.run_id, packed, workers=members[:1])
            if not answers:
                self.restart_unresponsive(members[:1])
                return False
            best = saved.snapshot.position.update
            self.take({members[0]: MemberOutcome(best, is_judged=answers[members[0]])})
        self._run.reach(best)
        holder = next(address for address in members if self.updates.get(address, 0) == best)
        if self._has_reported_all(holder):
            return True
        self.restart_unresponsive([holder])
        return False

    def take(self, outcomes: Mapping[str, MemberOutcome]) -> None:
        """How far these members are now; one whose step failed midway has no state."""
        for address, outcome in outcomes.items():
            if not outcome.is_whole:
                self.updates.pop(address, None)
                continue
            self.updates[address] = outcome.update
            (self._unjudged.discard if outcome.is_judged else self._unjudged.add)(address)

    @property
    def is_judged(self) -> bool:
        """Whether one of the most advanced members is judged; true if there is none."""
        return not self.updates or self._best() not in self._unjudged

    def _best(self) -> str:
        return max(self.updates, key=lambda address: (self.updates[address], address not in self._unjudged))

    def take_reports(self, address: str) -> bool:
        """Fetch the missing reports of that member; False if it is gone."""
        reports = self._ask(service.take_reports, address)
        self._take(reports or ())
        return reports is not None

    def save(self, address: str) -> bool:
        """Save that member's state in a checkpoint, after the reports that led to it; False if it is gone."""
        self.expect_none()  # what comes now is newer
        kept = self._ask(service.take_snapshot, address)
        if kept is not None:
            self._save(*kept)
        return kept is not None

    def save_while_it_trains(self, address: str, *, due: bool) -> None:
        """Save the state of a member that trains as soon as it has come; it is asked for it if a checkpoint is due.

        Nothing waits for it: a member that hangs must not hold up its driver, which looks for those that do.
        """
        if self._coming is None:
            if due:
                self._coming = self._crew.calls.begin(service.take_snapshot, *self._known, worker=address)
        elif (answers := self._coming()) is not None:
            self._coming = None
            for kept in answers.values():
                self._save(*kept)

    def expect_none(self) -> None:
        """Take no state that was asked for and has not come: its member trains no longer."""
        self._coming = None

    def release(self, going: Set[str]) -> None:
        """Stop counting on these workers; if only they hold the newest state, save it first."""
        best = max(self.updates.values(), default=0)
        holders = {address for address, update in self.updates.items() if update == best}
        if going >= holders:
            self.save_newest(holders)
        for address in going:
            self.updates.pop(address, None)

    def save_newest(self, holders: Set[str]) -> None:
        """Save the newest state that one of these workers holds, unless a checkpoint is as new."""
        for address in sorted(holders & self.updates.keys(), key=self.updates.__getitem__, reverse=True):
            if self.updates[address] <= self._run.saved_update or self.save(address):
                return

    def restart_unresponsive(self, addresses: Collection[str]) -> None:
        """See Crew.restart_unresponsive; the newest state of those that answer is saved before any is restarted."""
        self._crew.restart_unresponsive(addresses, self._run.note, self.save_newest)

    def trained(self) -> Trained | None:
        """The newest state; None if the member that held it is gone, empty if nothing was trained."""
        if not self.updates:
            return Trained(None, {})
        best = self._best()
        self._has_reported_all(best)
        for packed in self._crew.calls.ask(service.take_result, self._crew.run_id, workers=[best]).values():
            return unpack_trained(packed)
        return None

    def _has_reported_all(self, address: str) -> bool:
        reported = self._run.reported >= self.updates.get(address, 0)
        return (reported and not self._run.evaluation_due(self._run.position)) or self.take_reports(address)

    def _ask(self, function: Callable[..., Any], address: str) -> Any:
        return self._crew.calls.ask(function, *self._known, workers=[address]).get(address)

    @property
    def _known(self) -> tuple[str, int, int]:
        """The run, and how far its reports are known."""
        return self._crew.run_id, self._run.reported, self._run.totals.evaluated

    def _save(self, packed: PackedSnapshot, reports: Iterable[Report]) -> None:
        self._take(reports)
        self._run.save(unpack_snapshot(packed))

    def _take(self, reports: Iterable[Report]) -> None:
        for report in reports:
            self._on_report(report)


# --- AllReduce ---
# AllReduce: the workers reduce among themselves, and each takes the optimizer's step (dask-pytorch-ddp, made
# elastic).
# One long Dask task per worker and generation. A generation ends when the plan wants another number of workers, a
# worker is ready to join, one is lost, or the run ends; the next begins from the most advanced committed state of its
# members. Losing a worker costs the update under way; losing all of them, the updates since the checkpoint.

_TICK_SECONDS = 0.05
_WATCH_SECONDS = 0.25  # between two looks at a generation that reports nothing; each look takes time from its members
_STOP_RETRY_SECONDS = 5.0
_SAVING_SECONDS = 20.0  # how long the members that answer have to end a generation in which others hang
_SILENCE_SECONDS = 10.0  # after which the members of a generation are pinged


class GenerationsDriver:
    """Runs generation after generation until the plan is done."""

    def __init__(self, run: RunState, crew: Crew, scaling: Scaling, host: str) -> None:
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
            yield Order(seat, self._now.number, until, evaluated=run.totals.evaluated, reported=run.reported)

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
        if time.monotonic() - present.cancelled_at > self._run.spec.patience_seconds + health.STUCK_SECONDS:
            present.cancelled_at = math.inf
            stuck = [member for member in present.members if member not in present.outcomes]
            self._save(present)
            self._crew.restart(stuck, self._run.note, health.STUCK)

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

    def _end(self, present: Generation, address: str, outcome: MemberOutcome | None) -> None:
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


def train(run: RunState, join: Join) -> Trained:
    """Train with AllReduce. See GenerationsDriver.train."""
    with join() as force:
        return GenerationsDriver(run, force.crew, force.scaling, force.host).train()
