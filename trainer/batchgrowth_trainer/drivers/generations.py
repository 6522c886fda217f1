"""The driver of AllReduce and the other exchanges between workers: it drives one generation of members after another.

The workers reduce among themselves, and each takes the optimizer's step (dask-pytorch-ddp, made elastic). A generation
is one long Dask task per member. It ends when the plan wants another number of workers, a worker is ready to join or
leaves, one is lost, or the run ends; the next generation begins from the most advanced committed state of its members.
`GenerationsDriver._handle` learns of a lost worker by its `Left` or the end of its task. Losing a worker costs the
update under way; losing all of them, the updates since the checkpoint. `PauseClock` in worker/member.py measures the
pause of a resize.
"""

import logging
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from batchgrowth.errors import BatchGrowthError, WorkloadError
from distributed import Future

from batchgrowth_trainer.drivers.run import RunState, Undo
from batchgrowth_trainer.drivers.scaling import Join, Scaling
from batchgrowth_trainer.exchange.connections import TOKEN_BYTES, assign_ranks
from batchgrowth_trainer.exchange.group import Rendezvous
from batchgrowth_trainer.exchange.spot_check import THE_STATE, Answer, Finding, accusation, replaced
from batchgrowth_trainer.pool import membership
from batchgrowth_trainer.pool.calls import Asked, drop
from batchgrowth_trainer.pool.connection import SchedulerLost
from batchgrowth_trainer.pool.membership import Ended, Event
from batchgrowth_trainer.pool.worker_pool import WorkerPool
from batchgrowth_trainer.record.snapshot import PackedSnapshot, Trained, pack_snapshot, unpack_snapshot, unpack_trained
from batchgrowth_trainer.user_errors import WorkerFault
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

_TICK_SECONDS = 0.05
_WATCH_SECONDS = 0.25  # between two looks at a generation that reports nothing; each look takes time from its members
_STOP_RETRY_SECONDS = 5.0
_SAVING_SECONDS = 20.0  # how long the members that answer have to end a generation in which others hang
_ARBITER_SECONDS = 600.0  # the longest wait for an arbiter, whose pod may wait for its node
_SILENCE_SECONDS = 10.0  # after which the members of a generation are pinged
_LAST_ANSWER_SECONDS = 5.0  # how long a member may take to say how far it is when an error ends the run

log = logging.getLogger(__name__)


def train(run: RunState, join: Join) -> Trained:
    """Train with any exchange between workers, from joining the cluster to the result."""
    with join() as cluster:
        return GenerationsDriver(run, cluster.pool, cluster.scaling, cluster.host).train()


@dataclass(slots=True)
class Generation:
    """The members of one generation, in the order of their ranks; the outcome of a member that is gone is None."""

    number: int
    members: list[str]
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES), repr=False)
    futures: dict[str, Future] = field(default_factory=dict)
    outcomes: dict[str, MemberOutcome | None] = field(default_factory=dict)
    pauses: dict[int, float | None] = field(default_factory=dict)  # by rank, of those that have begun
    stop_reason: str = ""  # why it was requested to stop
    stop_asked_at: float = -math.inf  # when it was last requested to stop
    cancelled_at: float = math.inf  # when its members were last told not to wait for lost ones
    heard_at: float = field(default_factory=time.monotonic)  # when a member last reported or ended
    hung: set[str] = field(default_factory=set)  # workers that are restarted once the others' state is saved
    hung_at: float = math.inf  # when the first of them was found

    @property
    def over(self) -> bool:
        """Return whether every member has ended or gone."""
        return len(self.outcomes) == len(self.members)

    @property
    def remaining(self) -> dict[str, MemberOutcome]:
        """Return the outcome of each remaining member."""
        return {address: outcome for address, outcome in self.outcomes.items() if outcome is not None}

    @property
    def errors(self) -> dict[str, BatchGrowthError]:
        """Return the errors with which members ended."""
        return {address: outcome.error for address, outcome in self.remaining.items() if outcome.error is not None}

    @property
    def finding(self) -> Finding | None:
        """Return what a check of the members found; None if it found nothing."""
        return next((outcome.finding for outcome in self.remaining.values() if outcome.finding is not None), None)

    @property
    def lost(self) -> str:
        """Return why a peer was lost; empty if none was."""
        for address, error in self.errors.items():
            return f"worker {address} was left out: {error}"
        gone = len(self.outcomes) - len(self.remaining)
        if gone:
            return f"{gone} of {len(self.members)} workers were lost"
        return next((outcome.lost for outcome in self.remaining.values() if outcome.lost), "")


class GenerationsDriver:
    """Runs generation after generation until the plan is done."""

    def __init__(self, run: RunState, pool: WorkerPool, scaling: Scaling, host: str) -> None:
        self._run = run
        self._pool = pool
        self._scaling = scaling
        self._host = host
        self._states = States(run, pool, self._take_report)
        self._number = 0
        self._reason = "training begins"  # why the next generation is formed
        self._ended_at = time.monotonic()  # when the last generation ended
        self._size = 0  # members of the last generation that began
        self._now: Generation | None = None
        self._rendezvous: Rendezvous | None = None

    def train(self) -> Trained:
        """Train to the end of the plan or a requested stop. Raises WorkloadError, DataError and ClusterError."""
        with self._run.saved_before_errors(self._save_newest):
            return self._train()

    def _train(self) -> Trained:
        run = self._run
        states = self._states
        while True:
            # Wait for members; after `catch_up`, one holds the newest state, and all reports up to it are recorded.
            members = self._scaling.gather(self._handle_events, states.updates)
            if members:
                run.try_saving(self._pool.ready[members[0]].state_bytes)
            if members and not states.catch_up(members):
                self._handle_events(_TICK_SECONDS)
                continue

            is_done = run.plan.is_done(run.position) and states.is_judged and not run.evaluation_due(run.position)
            if is_done or run.stop_requested():
                trained = states.trained()
                if trained is not None:
                    return trained
                states.updates.clear()
                run.record_recovery("the last state was lost with its worker")
                continue

            self._number += 1
            generation = self._now = Generation(self._number, members)
            log.info("%s: generation %d, workers: %d: %s", run.where, generation.number, len(members), self._reason)
            try:
                self._form(generation)
                # What members report is recorded while events are handled.
                while not generation.over:
                    self._handle_events(_WATCH_SECONDS)
                    self._scaling.tick(members)
                    self._stop_if_due(generation)
                    is_ending = generation.stop_reason or generation.outcomes
                    states.save_while_it_trains(members[0], due=run.checkpoint_due() and not is_ending)
                    self._restart_unresponsive(generation)
            finally:
                self._close_rendezvous()
            states.expect_none()
            self._now = None
            self._ended_at = time.monotonic()
            self._conclude(generation)

    def _form(self, generation: Generation) -> None:
        """Send each member its order: its rank, its peers' addresses, and the end of the stage, where it stops."""
        run = self._run
        pool = self._pool
        ready = [pool.ready[address] for address in generation.members]
        entry = run.spec.exchange.entry
        # NCCL makes each wait for all, which a Nondeterministic exchange must not.
        store = None
        if entry.promise != "Nondeterministic" and backend_of(ready) == "nccl":
            self._rendezvous = Rendezvous(self._host)
            store = (self._rendezvous.host, self._rendezvous.port)
        until = self._scaling.ends_at(len(ready))
        assignments = assign_ranks(
            [prepared.listens_at for prepared in ready],
            generation.token,
            run.spec.patience_seconds,
            store,
            all_connected=entry.all_connected,
        )
        for address, assignment in zip(generation.members, assignments, strict=True):
            order = Order(
                assignment, generation.number, until, evaluated=run.totals.evaluated, reported=run.reported,
                decisions=run.decisions,
            )  # fmt: skip
            future = pool.calls.submit(address, service.train_generation, pool.run_id, order)
            generation.futures[address] = future
            future.add_done_callback(pool.on_outcome(address, generation.number))

    def _stop_if_due(self, generation: Generation) -> None:
        """Request a stop after the current update; repeat the request after a while, because it may have been lost."""
        if generation.outcomes or time.monotonic() - generation.stop_asked_at < _STOP_RETRY_SECONDS:
            return
        reason = "a stop is requested"
        if not self._run.stop_requested():
            reason = self._scaling.reason_to_regroup(generation.members)
        if reason:
            log.debug("%s: generation %d is asked to stop: %s", self._run.where, generation.number, reason)
            generation.stop_reason = reason
            generation.stop_asked_at = time.monotonic()
            # Rank 0 alone is asked: the exchange carries its answer, so that all members stop after the same update.
            self._pool.calls.notify(
                service.request_stop, self._pool.run_id, generation.number, worker=generation.members[0]
            )

    def _restart_unresponsive(self, generation: Generation) -> None:
        """Restart workers that hang, and members whose thread does not end the generation.

        Before restarting a member, save the newest state of the members that answer. A member sends its state only
        after its generation, so a hung member ends the generation for all. Members that do not end in time, such as
        those in a group by NCCL, are not waited for.
        """
        if time.monotonic() - generation.heard_at > _SILENCE_SECONDS:
            log.debug("%s: nothing was heard for %.0f s; asking the workers", self._run.where, _SILENCE_SECONDS)
            generation.heard_at = time.monotonic()
            self._pool.ask_whether_alive(generation.members)

        found = self._pool.hung()
        self._pool.restart(found.difference(generation.members), self._run.note)
        if found := found.intersection(generation.members):
            generation.hung |= found
            generation.hung_at = min(generation.hung_at, time.monotonic())
            self._cancel(generation)
        others = self._pool.answering(generation.members) - generation.hung - generation.outcomes.keys()
        are_ending = others and time.monotonic() - generation.hung_at < _SAVING_SECONDS
        if generation.hung and not are_ending:
            self._save_remaining(generation)
            self._pool.restart(generation.hung, self._run.note)
            generation.hung.clear()
            generation.hung_at = math.inf

        # Members that answer, but whose thread hangs: their peers ended this generation long ago.
        if time.monotonic() - generation.cancelled_at > self._run.spec.patience_seconds + membership.STUCK_SECONDS:
            generation.cancelled_at = math.inf
            stuck = [member for member in generation.members if member not in generation.outcomes]
            self._save_remaining(generation)
            self._pool.restart(stuck, self._run.note, membership.STUCK)

    def _save_remaining(self, generation: Generation) -> None:
        """Save the newest state of the members that have ended, before hung members are restarted."""
        self._states.take(generation.remaining)
        self._states.save_newest(generation.remaining.keys() - generation.errors)

    def _save_newest(self) -> None:
        """Save the newest state that a worker holds, before an error ends the run; members that train stop first."""
        generation = self._now
        if generation is not None:
            self._cancel(generation)
            ends = time.monotonic() + _SAVING_SECONDS
            while not generation.over and time.monotonic() < ends:
                with suppress(BatchGrowthError):  # another member's; the first error ends the run
                    self._handle_events(_TICK_SECONDS)
            self._now = None
        self._states.find(_LAST_ANSWER_SECONDS)
        self._states.save_newest(self._pool.registered)

    def _cancel(self, generation: Generation) -> None:
        """Unblock members that wait for a lost member while the group forms; a formed group notices the loss itself."""
        self._close_rendezvous()
        if generation.cancelled_at == math.inf:
            generation.cancelled_at = time.monotonic()
            for address in generation.members:
                if address not in generation.outcomes:
                    self._pool.calls.notify(
                        service.cancel_generation, self._pool.run_id, generation.number, worker=address
                    )

    def _close_rendezvous(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _conclude(self, generation: Generation) -> None:
        """Note each member's progress, leave out members with a fault, and record a loss.

        Raises Undo after a check's finding, a WorkerFault that recurs, and any other error of a member.
        """
        run = self._run
        states = self._states
        if generation.finding is not None:
            raise self._replace_wrong(generation, generation.finding)
        for address, error in generation.errors.items():
            if not isinstance(error, WorkerFault):
                # The history gets the updates before the fault, although the run ends.
                states.take_reports(address)
                raise error
        states.take(generation.remaining)
        if states.updates:
            run.update = max(states.updates.values())
        lost = generation.lost
        self._reason = lost or generation.stop_reason or f"generation {generation.number} reached its last update"
        log.debug("%s: generation %d ended: %s", run.where, generation.number, self._reason)
        # Before workers are left out, which ends their processes: only they may hold the newest state.
        states.release(self._pool.leaving | generation.errors.keys())
        self._pool.admit_held(run.update)
        for address, fault in generation.errors.items():
            assert isinstance(fault, WorkerFault)
            self._pool.leave_out(address, fault)
        if lost:
            run.record_recovery(lost)
            states.restart_unresponsive([*generation.remaining.keys() - generation.errors])

    def _replace_wrong(self, generation: Generation, finding: Finding) -> Undo:
        """Replace the members that compute wrongly, as a check has found; return the Undo with how far to go back.

        Raises WorkloadError if the code has several answers.
        """
        members = generation.members
        named = {address: self._name(address) for address in members}
        names = {address: self._pool.name_of(address) for address in members}  # before any of them is replaced
        wrong = [members[rank] for rank in finding.wrong]
        others = f"{len(members) - len(wrong)} others"
        if not wrong:
            try:
                wrong = self._wrong_by_arbiter(generation, finding)
            except (SchedulerLost, WorkerFault) as error:
                # The finding stands: training must not go on from a state that is in doubt, nor may that be saved.
                log.warning("%s: no arbiter can be asked: %s", self._run.where, error)
                wrong = [member for member, answer in zip(members, finding.answers, strict=True) if answer is not None]
            others = "the arbiter"
            if len(wrong) == len(members):
                others = "each other"
        if len(members) == 1:
            others = "what it computed before"
        place = f", in shard {finding.shard} of update {finding.update}"
        if finding.what == THE_STATE:
            place = f" of update {finding.update}"
        cause = accusation([named[address] for address in wrong], others, finding.what, place)
        with suppress(SchedulerLost):  # the finding stands
            self._pool.replace(wrong, f"{cause}; a worker that computes wrongly is replaced", self._handle_events)
        own = [outcome.finding for address, outcome in generation.remaining.items() if address in wrong]
        compared = [one.compared for one in own if one is not None and one.compared < one.covered]
        is_of_alone = len(members) > 1 and bool(compared)
        return Undo(
            replaced(cause, wrong),
            finding.update,
            min(compared) if is_of_alone else finding.covered,
            [names[address] for address in wrong],
            is_of_alone=is_of_alone,
        )

    def _name(self, address: str) -> str:
        prepared = self._pool.ready.get(address)
        where = f" on {prepared.host}" if prepared is not None and prepared.host != prepared.name else ""
        return f"worker {prepared.name if prepared is not None else address}{where}"

    def _wrong_by_arbiter(self, generation: Generation, finding: Finding) -> list[str]:
        """Return the members that are wrong, by letting one more worker, the arbiter, compute the shard.

        The arbiter is a worker outside the group with the arithmetic of the members that contradict each other, or else
        the replacement of the last of them. All of them count as wrong if no arbiter answers in time, or a stop is
        requested. Raises WorkloadError if the arbiter's answer is none of theirs.
        """
        answers = dict(zip(generation.members, finding.answers, strict=True))
        answered = [member for member, answer in answers.items() if answer is not None]
        # Only processes of one arithmetic can contradict each other. If members of several do, another check finds the
        # others. A member that leaves may have any arithmetic; nothing can be compared if all leave.
        ready = self._pool.ready
        digest = next((ready[member].arithmetic.digest for member in answered if member in ready), None)
        members = [one for one in answered if one not in ready or ready[one].arithmetic.digest == digest]
        witness = next((member for member in members if member in generation.remaining), None)
        snapshot = self._states.snapshot(witness) if witness is not None else None
        if snapshot is None or digest is None:
            return members
        has_replaced = False
        ends = time.monotonic() + _ARBITER_SECONDS
        while time.monotonic() < ends and not self._run.stop_requested():
            arbiters = [worker for worker in ready if worker not in generation.members]
            arbiters = [worker for worker in arbiters if ready[worker].arithmetic.digest == digest]
            if arbiters:
                answer = self._answer_of(arbiters[0], snapshot, finding, ends)
                if answer is None:
                    continue
                if answer not in [answers[member] for member in members]:
                    raise WorkloadError(
                        f"update {finding.update}, shard {finding.shard}: {finding.what} has other bits in each of "
                        f"{len(members) + 1} workers, so the code or its data depend on the process. Draw from torch, "
                        "numpy.random or random, which the trainer seeds, and read the same data in every worker; "
                        "verify: false trains without this check"
                    )
                return [member for member in members if answers[member] != answer]
            if not has_replaced:
                has_replaced = True
                why = f"{finding.what} differs between workers, and this one's replacement is the arbiter"
                self._pool.replace(members[-1:], why, self._handle_events)
            self._run.wait_for("one more worker, the arbiter of two that computed different bits")
            self._scaling.tick([member for member in generation.members if member != members[-1]])
            self._handle_events(_TICK_SECONDS)
        return members

    def _answer_of(self, arbiter: str, snapshot: PackedSnapshot, finding: Finding, ends: float) -> Answer | None:
        """Return the arbiter's answer to the question of the check.

        None if the arbiter is lost or has a fault, or if a stop is requested or the time `ends` comes before. Raises
        any other error of the arbiter.
        """
        log.info("%s: worker %s computes shard %d as the arbiter", self._run.where, arbiter, finding.shard)
        _, tensors = snapshot
        arguments = self._pool.run_id, tensors, finding.step, finding.shard
        future = self._pool.calls.submit(arbiter, service.compute_answers, *arguments)
        while not future.done() and arbiter in self._pool.ready:
            if time.monotonic() > ends or self._run.stop_requested():
                break
            self._handle_events(_TICK_SECONDS)
        # The end of this task is not queued, unlike a generation's; `Ended` interprets it all the same.
        ended = Ended(arbiter, self._number, future)
        fault = ended.fault()
        if fault is not None:
            self._run.note(f"worker {arbiter} was left out: {fault}")
            self._pool.leave_out(arbiter, fault)
        if fault is not None or ended.is_lost():
            drop(future)
            return None
        answers = list[Any]()
        self._pool.calls.fetch(future, answers.append)
        while not answers and arbiter in self._pool.ready and time.monotonic() < ends:
            self._handle_events(_TICK_SECONDS)
        if not answers or answers[0] is None:
            return None
        [answer] = answers[0]
        return tuple(answer)

    def _handle_events(self, seconds: float) -> None:
        self._pool.drain_events(seconds, self._handle)
        self._pool.admit_held(self._run.update)

    def _handle(self, event: Event) -> None:
        self._pool.follow(event)
        generation = self._now
        match event:
            case RowsReport() | EvaluationReport():
                self._take_report(event)
            case Left(address):
                self._states.updates.pop(address, None)
                if generation is not None and address in generation.members:
                    self._take_end(generation, address, None)
            case GenerationBegan() if generation is not None and event.generation == generation.number:
                generation.heard_at = time.monotonic()
                generation.pauses[event.rank] = event.pause
                self._record_resize(generation, event.update)
            case Ended() if generation is not None and event.generation == generation.number:
                try:
                    outcome = None if event.is_lost() else event.outcome
                except BaseException:
                    self._take_end(generation, event.address, None)  # its peers need not wait for it
                    raise
                self._take_end(generation, event.address, outcome)

    def _take_end(self, generation: Generation, address: str, outcome: MemberOutcome | None) -> None:
        generation.heard_at = time.monotonic()
        # A worker may leave before or after the end of its task is heard of: what came first counts.
        generation.outcomes.setdefault(address, outcome)
        if outcome is None:
            drop(generation.futures[address])
        if outcome is None or outcome.lost or outcome.error:
            self._cancel(generation)

    def _take_report(self, report: Report) -> None:
        if self._now is not None:
            self._now.heard_at = time.monotonic()
        if isinstance(report, EvaluationReport):
            self._run.record_evaluation(report.position, report.values, report.evaluated_at, report.end)
            return
        self._run.record_rows(report.rows)
        self._run.record_figures(report.figures, is_of_alone=report.is_of_alone)

    def _record_resize(self, generation: Generation, update: int) -> None:
        """Once every member has begun, record the resize, if there was one, with the longest pause of `PauseClock`."""
        size = len(generation.members)
        if len(generation.pauses) < size:
            return
        if self._size not in (0, size):
            pause = longest_pause(generation.pauses.values(), otherwise=time.monotonic() - self._ended_at)
            self._run.record_resize(update, self._size, size, pause)
        self._size = size


def longest_pause(pauses: Iterable[float | None], otherwise: float) -> float:
    """Return the longest pause of the members in seconds; `otherwise` if all are newcomers, which have no pause."""
    return max((pause for pause in pauses if pause is not None), default=otherwise)


def backend_of(members: Sequence[Prepared]) -> str:
    """Return the backend of a group of these members: `nccl` if each has its own GPU, else `tcp`.

    Pods that share a GPU see it with one UUID.
    """
    gpus = {one.gpu for one in members}
    if all(one.gpu for one in members) and len(gpus) == len(members):
        return "nccl"
    return "tcp"


class States:
    """The driver's view of the members' states: their progress, their reports, and their state for checkpoints.

    `updates` counts each member's committed updates; `on_report` receives the reports that are fetched. A member that
    lost its peers while it evaluated is not judged: its state lacks the decisions from the evaluation.
    """

    def __init__(self, run: RunState, pool: WorkerPool, on_report: Callable[[Report], None]) -> None:
        self._run = run
        self._pool = pool
        self._on_report = on_report
        self.updates: dict[str, int] = {}
        self._unjudged: set[str] = set()
        self._coming: Asked | None = None  # the state of a member that trains

    def catch_up(self, members: list[str]) -> bool:
        """Restore the newest checkpoint if it is ahead of all members, and fetch missing reports.

        Return False if a member is lost. Raises NoMember if another run has made a worker drop its member.

        So the history has no gap: a member that trains on keeps the reports that never arrived, and a checkpoint is
        written only with the reports that led to it.
        """
        best = max(self.updates.get(address, 0) for address in members)
        saved = self._run.checkpoint_after(best)
        if saved is not None:
            best = saved.snapshot.position.update
            log.info("%s: worker %s restores the checkpoint of update %d", self._run.where, members[0], best)
            packed = pack_snapshot(saved.snapshot)
            answers = self._pool.calls.ask(service.restore_member, self._pool.run_id, packed, workers=members[:1])
            if not answers:
                self.restart_unresponsive(members[:1])
                return False
            self.take({members[0]: MemberOutcome(best, is_judged=answers[members[0]])})
        self._run.go_on_from(best)
        holder = next(address for address in members if self.updates.get(address, 0) == best)
        if self._has_reported_all(holder):
            return True
        self.restart_unresponsive([holder])
        return False

    def take(self, outcomes: Mapping[str, MemberOutcome]) -> None:
        """Note these members' progress; a member whose step failed midway has no state."""
        for address, outcome in outcomes.items():
            if not outcome.is_whole:
                self.updates.pop(address, None)
                continue
            self.updates[address] = outcome.update
            if outcome.is_judged:
                self._unjudged.discard(address)
            else:
                self._unjudged.add(address)

    def find(self, seconds: float) -> None:
        """Ask each registered worker how far its member is, if it has one; wait up to `seconds` for each answer."""
        ask = self._pool.calls.ask
        for address in sorted(self._pool.registered):
            try:
                self.take(ask(service.how_far, self._pool.run_id, workers=[address], seconds=seconds))
            except service.NoMember:  # it prepares, or another run has made it drop the member
                self.updates.pop(address, None)

    @property
    def is_judged(self) -> bool:
        """Return whether one of the most advanced members has judged its last evaluation; true without members."""
        return not self.updates or self._best() not in self._unjudged

    def trained(self) -> Trained | None:
        """Return the newest state, empty if nothing was trained; None if the member that held it is gone."""
        if not self.updates:
            return Trained(None, {})
        best = self._best()
        self._has_reported_all(best)
        for packed in self._pool.calls.ask(service.take_result, self._pool.run_id, workers=[best]).values():
            return unpack_trained(packed)
        return None

    def take_reports(self, address: str) -> bool:
        """Fetch the missing reports of that member; return False if the member is gone."""
        reports = self._ask(service.take_reports, address)
        for report in reports or ():
            self._on_report(report)
        return reports is not None

    def snapshot(self, address: str) -> PackedSnapshot | None:
        """Return that member's state; None if the member is gone."""
        kept = self._ask(service.take_snapshot, address)
        return None if kept is None else kept[0]

    def save(self, address: str) -> bool:
        """Save that member's state in a checkpoint, after recording its reports; return False if the member is gone."""
        self.expect_none()  # what comes now is newer
        kept = self._ask(service.take_snapshot, address)
        if kept is None:
            return False
        self._save(*kept)
        return True

    def save_while_it_trains(self, address: str, *, due: bool) -> None:
        """If a checkpoint is due, request a training member's state, and save it when it arrives.

        The driver does not wait for it, because a hung member must not hold up the driver, which looks for hung
        members.
        """
        if self._coming is None:
            if due:
                self._coming = self._pool.calls.begin(service.take_snapshot, *self._known, worker=address)
            return
        answers = self._coming()
        if answers is not None:
            self._coming = None
            for kept in answers.values():
                self._save(*kept)

    def expect_none(self) -> None:
        """Forget the request for a state that has not arrived, because its member no longer trains."""
        self._coming = None

    def release(self, going: Set[str]) -> None:
        """Stop relying on these workers, after saving the newest state if only they hold it."""
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
        """Restart the workers among these that hang, after saving the newest state that the other workers hold."""
        self._pool.restart_unresponsive(addresses, self._run.note, self.save_newest)

    def _best(self) -> str:
        return max(self.updates, key=lambda address: (self.updates[address], address not in self._unjudged))

    def _has_reported_all(self, address: str) -> bool:
        """Fetch that member's missing reports, and return whether the history now has all its updates."""
        is_recorded = self._run.reported >= self.updates.get(address, 0)
        if is_recorded and not self._run.evaluation_due(self._run.position):
            return True
        return self.take_reports(address)

    def _ask(self, function: Callable[..., Any], address: str) -> Any:
        return self._pool.calls.ask(function, *self._known, workers=[address]).get(address)

    @property
    def _known(self) -> tuple[str, int, int]:
        """Return the run, the last update whose row the driver has, and the last epoch whose evaluation it has."""
        return self._pool.run_id, self._run.reported, self._run.totals.evaluated

    def _save(self, packed: PackedSnapshot, reports: Iterable[Report]) -> None:
        for report in reports:
            self._on_report(report)
        self._run.save(unpack_snapshot(packed))
