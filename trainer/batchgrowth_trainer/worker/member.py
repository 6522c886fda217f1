"""A member of the group, inside a Dask worker, which trains a replica for a generation at a time.

Watchdog detects a thread that hangs, Control has the driver's requests to a member that trains, PauseClock measures how
long a member has not computed, and Member has the replica.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.errors import BatchGrowthError
from batchgrowth.evaluations import evaluation_due
from batchgrowth.plan import Step
from batchgrowth.position import Position
from batchgrowth.shards import busiest
from batchgrowth.spec import JobSpec
from torch import Tensor

from batchgrowth_trainer.building import build_replica
from batchgrowth_trainer.exchange.all_reduce import Reduction
from batchgrowth_trainer.exchange.connections import Encryption, Listener
from batchgrowth_trainer.exchange.group import Group, PeerLost, form_group, spread_state, swap_with_all
from batchgrowth_trainer.exchange.spot_check import Answer, Finding, Found, SpotCheck, answers_of
from batchgrowth_trainer.exchange.strategy import NO_FIGURES, Round, Setting, strategy_of
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.record.snapshot import PackedTensor, Snapshot, unpack
from batchgrowth_trainer.replica.data import run_of
from batchgrowth_trainer.replica.evaluation import is_judged, judged
from batchgrowth_trainer.replica.later import look_back
from batchgrowth_trainer.replica.reproducible import prepare_process
from batchgrowth_trainer.user_errors import DeviceFault, reported_as_device_fault
from batchgrowth_trainer.worker import messages

TICK_SECONDS = 1.0
STUCK_SECONDS = 300.0
"""The shortest time, in addition to JobSpec.patience_seconds, after which a thread counts as hung.

It is long because all members may wait for one file system, and they alone hold the newest state.
"""
_LONGEST = 20.0  # a shard may take this many times as long as the longest before it


class Watchdog:
    """Detects that the computing thread hangs: its shard takes far longer than any before.

    The driver cannot detect that: the process answers, and a worker that trains alone has no peers that would time out.
    Only this process knows how long its shards take. It measures them in ticks, so that time in which the whole process
    is stopped does not count.

    The first shard is never too long, because it may compile the model.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._least = STUCK_SECONDS + timeout_seconds
        self._beats = self._seen = 0
        self._computing = False
        self._seconds = self._longest = 0.0
        self._closed = threading.Event()

    def __enter__(self) -> None:
        """Note that the thread begins to compute."""
        self._beats += 1
        self._computing = True

    def __exit__(self, *_: object) -> None:
        """Note that the thread does something else, such as waiting for its peers."""
        self._computing = False

    def beat(self) -> None:
        """Note that the thread has computed a shard, or something of that size."""
        self._longest = max(self._longest, self._seconds, TICK_SECONDS)
        self._beats += 1

    def tick(self, seconds: float) -> bool:
        """Count the seconds since the last tick, and return whether the thread hangs."""
        if not self._computing or self._beats != self._seen:
            self._seen = self._beats
            self._seconds = 0.0
            return False
        self._seconds += seconds
        return self._longest > 0 and self._seconds > max(self._least, _LONGEST * self._longest)

    def watch(self, end: Callable[[str], None]) -> None:
        """Tick in a thread until closed and nothing computes; call `end` with the reason once the computing thread
        hangs.
        """

        def tick() -> None:
            while self._computing or not self._closed.is_set():
                time.sleep(TICK_SECONDS)
                if self.tick(TICK_SECONDS):
                    end(f"a shard has taken {self._seconds:.0f} s, and none before it more than {self._longest:.0f} s")
                    return

        threading.Thread(target=tick, name="watchdog", daemon=True).start()

    def close(self) -> None:
        """Stop watching once the thread no longer computes; until then it may hang and block a new driver."""
        self._closed.set()


class Control:
    """The driver's requests to a member, which its training thread serves at the next update boundary.

    The worker's event loop writes them; until the boundary they cost the training thread nothing.
    """

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self.abandoned = False
        self._take = take
        self._stop_generation = self._over_generation = -1
        self._lock = threading.Lock()
        self._training = False
        self._requests: deque[Future[Snapshot]] = deque()

    def request_stop(self, generation: int) -> None:
        """Stop the member after its update if it trains in this generation or an earlier one."""
        self._stop_generation = max(self._stop_generation, generation)

    def stop_requested(self, generation: int) -> bool:
        """Return whether this generation should stop."""
        return self._stop_generation >= generation

    def cancel(self, generation: int) -> None:
        """End this generation and earlier ones: the member no longer waits for its peers in them."""
        self._over_generation = max(self._over_generation, generation)

    def is_over(self, generation: int) -> bool:
        """Return whether this generation ends without making its next update."""
        return self.abandoned or self._over_generation >= generation

    def request_snapshot(self) -> Future[Snapshot]:
        """Return the future of a copy of the state at the next update boundary, or now if the member does not train.

        The future raises RuntimeError if the device has failed.
        """
        request: Future[Snapshot] = Future()
        with self._lock:
            self._requests.append(request)
            if not self._training:
                self._serve()
        return request

    def at_boundary(self) -> None:
        """Serve the requested snapshots."""
        if self._requests:
            with self._lock:
                self._serve()

    def training(self, on: bool) -> None:
        """Record whether a thread trains now; if none does, serve the requested snapshots."""
        with self._lock:
            self._training = on
            if not on:
                self._serve()

    def _serve(self) -> None:
        if self._requests:
            try:
                snapshot = self._take()
            except RuntimeError as error:  # of a device that has failed
                while self._requests:
                    self._requests.popleft().set_exception(error)
            while self._requests:
                self._requests.popleft().set_result(snapshot)


class PauseClock:
    """Measures the time for which a member has not computed, which is its pause when a new generation begins.

    The driver gets it with GenerationBegan; the longest pause of all members is the resize's. The driver of
    GatherScatter, which has no generations, measures its own.
    """

    def __init__(self) -> None:
        self._update = -1
        self._since = 0.0

    def start(self, update: int) -> None:
        """Restart the clock: the member has just computed `update`, or the evaluation after it."""
        self._update = update
        self._since = time.perf_counter()

    def seconds(self, update: int) -> float | None:
        """Return the seconds since the start; None if the member has not computed `update` itself."""
        if update != self._update:
            return None
        return time.perf_counter() - self._since


# Each generation is one long Dask task; inside an update there is nothing but the arithmetic and the group.

_KEPT_ROWS = 4096  # and a long round's rows; members keep them for the driver, in case the member that reports dies
_KEPT_EVALUATIONS = 64
_REPORT_SECONDS = 0.2

Send = Callable[[messages.Report | messages.GenerationBegan], None]


class Member:
    """A replica with its control and its listener; it lives until it is dropped or the worker's process ends."""

    def __init__(self, spec: JobSpec, host: str) -> None:
        self.replica = build_replica(spec)
        self.listener = Listener(host)
        self.control = Control(self.replica.snapshot)
        self.watchdog = Watchdog(spec.patience_seconds)
        self.replica.on_shard = self.watchdog.beat
        longest = spec.exchange.entry.longest_round(spec.exchange.settings)
        self.rows: deque[HistoryRow] = deque(maxlen=_KEPT_ROWS + longest)
        self.evaluations: deque[messages.EvaluationReport] = deque(maxlen=_KEPT_EVALUATIONS)
        self.pause_clock = PauseClock()
        self.covered = 0
        """The update of this member's newest check that found nothing."""
        self.compared = 0
        """The update of the newest such check with other members: alone, a processor that always errs alike passes."""
        self._model: Mapping[str, PackedTensor] = {}

    def train(self, order: messages.Order, send: Send, encryption: Encryption | None) -> messages.MemberOutcome:
        """Train to the order's end, a stop, an error, a finding or the loss of a peer; the outcome says which."""
        prepare_process(self.replica.spec)
        self.replica.growth.repeat(order.decisions, order.reported)
        self.control.training(True)
        group: Group | None = None
        try:
            with reported_as_device_fault(lambda: f"a worker at update {self.replica.position.update}"):
                group = form_group(
                    order.assignment, self.listener, encryption, lambda: self.control.is_over(order.generation)
                )
                self._catch_up(group)
                _MemberGeneration(self, order, group, send).run()
            return self.outcome()
        except PeerLost as error:
            return self.outcome(lost=str(error))
        except BatchGrowthError as error:
            return self.outcome(error=error)
        except Found as found:
            return self.outcome(finding=replace(found.finding, covered=self.covered, compared=self.compared))
        finally:
            self.control.training(False)
            if group is not None:
                group.close()

    def outcome(
        self, lost: str = "", error: BatchGrowthError | None = None, finding: Finding | None = None
    ) -> messages.MemberOutcome:
        """Return how far the member is, and why its generation ended."""
        replica = self.replica
        return messages.MemberOutcome(
            replica.position.update, lost, error, is_judged(replica), replica.is_whole, finding
        )

    def close(self) -> None:
        """Close the member's watchdog, loaders and listener; its replica is only memory."""
        self.watchdog.close()
        self.replica.reader.close()
        self.listener.close()

    def gradient_rows(
        self, model: Mapping[str, PackedTensor] | None, step: Step, rank: int, size: int
    ) -> list[np.ndarray]:
        """Return the rows of this member's nodes of the update `step`, computed with the server's model.

        If `model` is None, the model of the last call is used, for another part of the same update.
        """
        prepare_process(self.replica.spec)
        model = self._model if model is None else model
        if self.replica.spec.exchange.settings.backups:
            self._model = model
        with reported_as_device_fault(f"a worker at update {step.position.update}"):
            for name, vector in self.replica.model_tensors().items():
                vector.copy_(unpack(model[name]))
            with self.watchdog:
                runs = partial(run_of, rank, size)
                partials = self.replica.partials(step, runs(step), runs=runs)
            rows = [p.row.cpu().numpy().copy() for p in partials]
        self.replica.rows.release(partials)
        return rows

    def answers(self, model: Mapping[str, PackedTensor], step: Step, shard: int, times: int) -> list[Answer]:
        """Return the answers to one shard of an update, computed with this model, which replaces the member's own."""
        prepare_process(self.replica.spec)
        with reported_as_device_fault(f"a worker at update {step.position.update}"), self.watchdog:
            for name, vector in self.replica.model_tensors().items():
                vector.copy_(unpack(model[name]))
            if times == 1:  # not a second time, to judge
                look_back(self.replica, step, shard)
            return answers_of(self.replica, step, shard, times)

    def _catch_up(self, group: Group) -> None:
        """Bring every member to the most advanced state. Raises PeerLost, and DeviceFault if no state is whole.

        Members at the same update and evaluation have the same state, unless the exchange is Nondeterministic.
        """
        here = self.replica.position
        update = here.update if self.replica.is_whole else -1
        mine = torch.tensor([update, self.replica.judgement.known(here.epoch), here.epoch, here.offset])
        places = [place.tolist() for place in swap_with_all(group, mine)]
        best = max(place[:2] for place in places)
        if best[0] < 0:
            raise DeviceFault(
                "no state is whole: a step failed, or another member's state came in part", str(self.listener.address)
            )
        holds = [place[:2] == best for place in places]
        if self.replica.spec.promise == "Nondeterministic":
            holds = [rank == holds.index(True) for rank in range(group.size)]
        if all(holds):
            return
        self.replica.is_whole = holds[group.rank]  # first: a state that arrives only in part must not count as whole
        spread_state(group, holds, list(self.replica.tensors().values()))
        if not holds[group.rank]:
            self.replica.moved_to(Position(best[0], *places[holds.index(True)][2:]))

    def unreported(self, reported: int, evaluated: int) -> tuple[messages.Report, ...]:
        """Return reports of the rows after update `reported` and the evaluations after epoch `evaluated`.

        Safe to call while another thread trains.
        """
        rows = self.rows_after(reported)
        evaluations = tuple(self.evaluations)
        new = (evaluation for evaluation in evaluations if evaluation.position.epoch > evaluated)
        return (*((messages.RowsReport(rows),) if rows else ()), *new)

    def rows_after(self, update: int) -> tuple[HistoryRow, ...]:
        """Return the kept rows of later updates."""
        return tuple(row for row in tuple(self.rows) if row.update > update)


def _no_stop() -> bool:
    """Request no stop: the driver asks rank 0, whose rows carry the request to all members."""
    return False


class _MemberGeneration:
    """Trains a member for one generation: round after round, with evaluations and reports between them."""

    def __init__(self, member: Member, order: messages.Order, group: Group, send: Send) -> None:
        self._member = member
        self._replica = member.replica
        self._order = order
        self._group = group
        self._send = send
        setting = Setting(self._replica, group, member.watchdog, self._check)
        self._strategy = strategy_of(setting)
        self._spot_check = SpotCheck(setting)
        self._is_reporter = group.rank == 0
        self._stop_requested: Callable[[], bool] = _no_stop
        if self._is_reporter:
            self._stop_requested = partial(member.control.stop_requested, order.generation)
        self._reported = order.reported
        self._reported_at = time.perf_counter()
        # All others together report as often as rank 0 does alone, so that a large group is no burden to its scheduler.
        self._report_seconds = _REPORT_SECONDS * (1 if self._is_reporter else group.size)
        self._evaluated = order.evaluated
        self._figures: list[ExchangeFigures] = []  # since the last report
        self._bytes_reported = group.bytes_sent  # the newest state, sent while catching up, does not count

    def run(self) -> None:
        """Train round after round to the end of the order or to a stop, which the rounds carry to every member."""
        replica = self._replica
        control = self._member.control
        began = replica.position.update
        pause = self._member.pause_clock.seconds(began)
        self._send(messages.GenerationBegan(self._order.generation, began, self._group.rank, pause))
        stop = False
        while True:
            if not replica.position.offset:
                # Before the boundary, so that a snapshot that is taken there has what the evaluation decided.
                self._evaluate_if_due()
            control.at_boundary()
            if stop or self._is_at_end():
                break
            if control.abandoned:
                raise PeerLost("another driver has taken over")
            made = self._strategy.round(self._stop_requested)
            self._add_rows(made)
            self._member.pause_clock.start(replica.position.update)
            if self._is_reporter and made.figures is not NO_FIGURES:
                self._figures.append(made.figures)
            # Also at the end: a worker that leaves, or the last one to hold the weights, is checked before.
            is_last = made.stop or self._is_at_end()
            if made.done and self._spot_check.after(made.done[0][0], made.done[-1][0], is_last=is_last):
                self._member.covered = replica.position.update
                if self._group.size > 1:
                    self._member.compared = replica.position.update
                if self._is_reporter:
                    self._figures.append(ExchangeFigures(checks=1, checked_update=replica.position.update))
            if time.perf_counter() - self._reported_at > self._report_seconds:
                self._report()
            stop = made.stop
        self._report()

    def _add_rows(self, made: Round) -> None:
        """Add a row for each update of a round: the round's times are divided by the examples of each update's busiest
        member, and the last update ends now.
        """
        size = self._group.size
        parts = [busiest(step.examples, step.shards, size) for step, _ in made.done]
        left = made.compute_seconds + made.exchange_seconds + made.wait_seconds
        for part, (step, committed) in zip(parts, made.done, strict=True):
            share = part / sum(parts)
            seconds = (share * made.compute_seconds, share * made.exchange_seconds, share * made.wait_seconds)
            left -= sum(seconds)
            row = HistoryRow.now(step, self._replica.plan, committed, size, seconds, max(0.0, left))
            self._member.rows.append(row)

    def _is_at_end(self) -> bool:
        """Return whether the order is carried out. The plan may end before: a batch that has grown has made it
        shorter.
        """
        replica = self._replica
        return replica.position.update >= self._order.until or replica.plan.is_done(replica.position)

    def _check(self) -> None:
        if self._member.control.is_over(self._order.generation):
            raise PeerLost("the driver has ended the generation")

    def _report(self) -> None:
        """Report the bytes that this member has sent; rank 0 reports the rows too, which are the same for all."""
        sent = self._group.bytes_sent - self._bytes_reported
        if self._is_reporter:
            rows = self._member.rows_after(self._reported)
            figures = ExchangeFigures()
            for each in self._figures:
                figures = figures.then(each)
            figures = replace(figures, bytes_sent=sent)
            self._figures.clear()
        else:
            rows = ()
            figures = ExchangeFigures(bytes_sent=sent)
        if rows:
            self._reported = rows[-1].update
        if rows or sent:
            self._send(messages.RowsReport(rows, figures, is_of_alone=self._group.size == 1))
        self._bytes_reported += sent
        self._reported_at = time.perf_counter()

    def _evaluate_if_due(self) -> None:
        """Evaluate if an evaluation is due at this end of an epoch."""
        replica = self._replica
        known = replica.judgement.known(self._evaluated)
        if not evaluation_due(replica.spec, replica.plan, replica.position, known):
            return
        watchdog = self._member.watchdog
        values = judged(replica, self._group.rank, self._group.size, self._reduce, watchdog)
        self._evaluated = replica.position.epoch
        report = messages.EvaluationReport(replica.position, values, time.time(), replica.judgement.end)
        self._member.evaluations.append(report)
        self._member.pause_clock.start(replica.position.update)
        if self._is_reporter:
            self._report()
            self._send(report)

    def _reduce(self, rows: Sequence[Tensor], shards: int, room: Tensor) -> Tensor:
        return Reduction(self._group)(rows, shards, room).total
