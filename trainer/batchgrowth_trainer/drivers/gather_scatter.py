"""GatherScatter: a server gathers the workers' gradients, takes the step and scatters the model.

The centralised, synchronous scheme of the AdaDamp paper (CS744 report, task 2A); the driver is the server. Each
update is one request per worker, by Dask's connections, with the model in it; the answer is the gradients. So workers
join and leave between updates at no cost; losing one costs that update's gradients. With `backups`, an idle worker
repeats the part of a slow one (stragglers.py).
"""

import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress
from statistics import median

import numpy as np
import torch
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.contract.progress import TRAINER
from batchgrowth.plan import Step
from batchgrowth.shards import lay_out

from batchgrowth_trainer.building import build_replica
from batchgrowth_trainer.drivers.run import RunState, Undo
from batchgrowth_trainer.drivers.scaling import Join, Scaling
from batchgrowth_trainer.drivers.single_process import evaluate_if_due
from batchgrowth_trainer.drivers.stragglers import Gathering, Stragglers
from batchgrowth_trainer.exchange.all_reduce import add_up
from batchgrowth_trainer.exchange.spot_check import (
    ANSWERS,
    Answer,
    accusation,
    answers_of,
    checked_every,
    checked_shard,
    differing_part,
    fickle_code,
    is_check_due,
    is_checked,
    replaced,
    verdict_of,
)
from batchgrowth_trainer.pool import membership
from batchgrowth_trainer.pool.arithmetics import STEPS
from batchgrowth_trainer.pool.connection import SchedulerLost
from batchgrowth_trainer.pool.membership import Event
from batchgrowth_trainer.pool.worker_pool import WorkerPool
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.record.snapshot import PackedTensor, Trained, pack_all
from batchgrowth_trainer.replica.decisions import Stopwatch
from batchgrowth_trainer.replica.evaluation import trained_of
from batchgrowth_trainer.replica.later import look_back_at_steps
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import Gradients

_TICK_SECONDS = 0.05
_PACES = 9  # of the last updates; their median is the usual pace, even if a few updates were slow

log = logging.getLogger(__name__)


def train(run: RunState, join: Join) -> Trained:
    """Train with GatherScatter. Raises WorkloadError, DataError and ClusterError."""
    replica = build_replica(run.spec)
    with closing(replica.reader):
        run.arithmetics.compare_own(STEPS, replica.arithmetic)
        with join() as cluster:
            return GatherScatterDriver(run, cluster.pool, cluster.scaling, replica).train()


class GatherScatterDriver:
    """The server: holds the replica and the optimizer, and adds the workers' gradients in the fixed order."""

    def __init__(self, run: RunState, pool: WorkerPool, scaling: Scaling, replica: Replica) -> None:
        self._run = run
        self._pool = pool
        self._scaling = scaling
        self._replica = replica
        self._late = Stragglers(pool, run.note, run.spec.patience_seconds)
        self._number = 0  # of the attempts at updates
        self._size = 0  # workers of the last attempt, including late ones
        self._now: Gathering | None = None
        self._paces = deque[float](maxlen=_PACES)
        self._stopwatch = Stopwatch()
        self._committed_at = time.perf_counter()

    def train(self) -> Trained:
        """Train to the end of the plan or a requested stop. Raises WorkloadError, DataError and ClusterError."""
        run = self._run
        replica = self._replica
        run.try_saving(replica.num_bytes)
        saved = run.checkpoint_after(0)
        if saved is not None:
            replica.restore(saved.snapshot)
        run.go_on_from(replica.position.update)
        replica.growth.repeat(run.decisions, run.reported)
        # Also if the scheduler is lost: the next scheduler's driver resumes from that state.
        with run.saved_before_errors(lambda: run.save_if_newer(replica.position.update, replica.snapshot)):
            while True:
                if not replica.position.offset and evaluate_if_due(run, replica):
                    self._committed_at = time.perf_counter()
                if run.stop_requested() or replica.plan.is_done(replica.position):
                    return trained_of(replica)
                if run.checkpoint_due():
                    run.save(replica.snapshot())
                self._update(replica.plan.step_at(replica.position))

    def _update(self, step: Step) -> None:
        """Try to make the update `step`: wait for workers, scatter the model, gather the gradients, and step."""
        run = self._run
        pool = self._pool
        replica = self._replica
        team = self._scaling.gather(self._handle_events, {})
        free = self._free(team)
        # If every free worker rests, all of them compute: an update cannot do without workers.
        members = [worker for worker in free if not self._late.rests(worker)] or free
        if not members:
            self._handle_events(_TICK_SECONDS)
            return

        began = time.perf_counter()
        self._number += 1
        layout = lay_out(step.shards, len(members))
        usual = median(self._paces) if self._paces else None
        gathering = Gathering(self._number, [hi - lo for lo, hi in layout.runs], usual)
        self._now = gathering  # before the first request, whose end `_handle` gives to it
        model = pack_all(replica.model_tensors())
        for rank, address in enumerate(members):
            self._request(gathering, step, rank, len(members), address, model)
        self._record_resize(step, len(team))
        while not gathering.is_over:
            self._handle_events(_TICK_SECONDS)
            pool.check_connected()
            if run.spec.exchange.settings.backups and (overdue := gathering.overdue()):
                # Workers that joined or came back during the update may repeat a part too.
                idle = gathering.idle(self._free(self._scaling.team({})))
                ready = [address for address in idle if address in pool.ready]
                for rank, address in zip(overdue, ready, strict=False):
                    log.debug("%s: worker %s repeats part %d, which is overdue", run.where, address, rank)
                    self._request(gathering, step, rank, len(members), address, model)
            self._restart_hung(gathering)
        self._now = None
        # Nothing is committed yet, so the driver tries the same update again, with the workers that are left.
        if gathering.is_lost:
            self._recover(members, gathering)
            return

        pace = gathering.pace
        assert pace is not None
        self._paces.append(pace)
        self._part_with(gathering)
        first = gathering.first_copies()
        answers: list[Gradients] = [copy.request.result for copy in first]
        sent = len(gathering.asked) * sum(t.nbytes for t in replica.model_tensors().values())
        sent += sum(row.nbytes for answer in answers for row in answer.rows)
        run.publish(ExchangeFigures(bytes_sent=sent))
        rows = [torch.from_numpy(np.array(row)).to(replica.device) for answer in answers for row in answer.rows]
        replica.tail.write_timing(rows[0], self._stopwatch.timing)
        done = replica.commit(step, add_up(rows, layout))

        self._committed_at = time.perf_counter()
        whole = self._committed_at - began
        self._stopwatch.lap(step, len(members), whole)
        seconds = [copy.delay + answer.seconds for copy, answer in zip(first, answers, strict=True)]
        shortest = min(seconds)
        longest = max(seconds)
        times = shortest, max(0.0, whole - longest), longest - shortest
        run.record_rows([HistoryRow.now(step, replica.plan, done, len(members), times)])
        self._check_if_due(step, members)

    def _check_if_due(self, step: Step, members: list[str]) -> None:
        """If a check is due after this update, let the members and the server compute a shard, and compare.

        Raises Undo if one of them computes wrongly, and WorkloadError if the code has several answers.
        """
        run = self._run
        if not is_checked(run.spec):
            return
        is_last = self._replica.plan.is_done(step.after)
        every = checked_every(self._replica, step.batch_size, len(members))
        if not is_last and not is_check_due(step, step, every):
            return
        look_back_at_steps(self._replica, step)
        crews = self._crews(members)
        shard = checked_shard(run.spec, step)
        answers = self._answers(step, shard, [worker for crew in crews for worker in crew], 1)
        is_compared = False
        for crew in crews:
            given = [answers[worker] for worker in crew if worker in answers]
            if len(given) > 1:
                is_compared |= verdict_of(given).is_same or self._judge(step, shard, crew)
        if is_compared:
            run.record_figures(ExchangeFigures(checks=1, checked_update=step.after.update))

    def _crews(self, members: list[str]) -> list[list[str]]:
        """Return groups of two or more processes with one arithmetic, which can be compared; "" is the server."""
        crews = {self._replica.arithmetic.digest: [""]}
        for worker in members:
            if worker in self._pool.ready:
                crews.setdefault(self._pool.ready[worker].arithmetic.digest, []).append(worker)
        return [crew for crew in crews.values() if len(crew) > 1]

    def _answers(self, step: Step, shard: int, asked: Sequence[str], times: int) -> dict[str, list[Answer]]:
        """Return the answers of these processes, "" being the server, without workers that are lost or have a fault.

        Raises a worker's error unless it is a WorkerFault.
        """
        if not asked:
            return {}
        # Copies: the server's own computing moves its buffers while the requests are still being sent.
        model = pack_all({name: vector.clone() for name, vector in self._replica.model_tensors().items()})
        order = self._pool.run_id, model, step, shard, times
        workers = [worker for worker in asked if worker]
        gathering = Gathering(self._number, [1] * len(workers))
        self._now = gathering  # before the first request, whose end `_handle` gives to it
        requests = {}
        for rank, worker in enumerate(workers):
            on_end = self._pool.on_end(worker, self._number)
            requests[worker] = self._pool.calls.request(worker, service.compute_answers, *order, then=on_end)
            gathering.add(rank, worker, requests[worker])
        answers = {}
        if "" in asked:
            answers[""] = answers_of(self._replica, step, shard, times)
        while gathering.under_way():
            self._handle_events(_TICK_SECONDS)
            self._pool.check_connected()
            self._restart_hung(gathering)
        self._now = None
        self._leave_out_faulty(gathering)
        for worker, request in requests.items():
            if request.status == "finished":
                answers[worker] = [tuple(answer) for answer in request.result]
        return answers

    def _judge(self, step: Step, shard: int, crew: Sequence[str]) -> bool:
        """Let the crew compute the shard several times, and return whether all answers are the same.

        Return False if fewer than two are left to compare. Raises Undo if a process computes wrongly, and WorkloadError
        if the code has several answers.
        """
        replica = self._replica
        given = self._answers(step, shard, crew, ANSWERS)
        if len(given) < 2:
            return False
        answers = list(given.values())
        verdict = verdict_of(answers)
        if verdict.is_same:
            return True
        what = differing_part(replica, [answer for own in answers for answer in own])
        if verdict.is_code:
            raise fickle_code(replica, step, shard, what)
        places = verdict.wrong or range(len(given))
        wrong = [worker for place, worker in enumerate(given) if place in places]
        names = [f"worker {self._pool.ready[w].name}" if w in self._pool.ready else w or "the trainer" for w in wrong]
        others = "each other"
        if len(wrong) < len(given):
            others = f"{len(given) - len(wrong)} others"
        cause = accusation(names, others, what, f", in shard {shard} of update {step.after.update}")
        found = Undo(
            replaced(cause, wrong),
            step.after.update,
            workers=[self._pool.name_of(worker) if worker else TRAINER for worker in wrong],
        )
        with suppress(SchedulerLost):  # the finding stands, and the state, which is in doubt, must not be saved
            self._pool.replace([worker for worker in wrong if worker], cause, self._handle_events)
        raise found

    def _request(
        self, gathering: Gathering, step: Step, rank: int, size: int, address: str, model: dict[str, PackedTensor]
    ) -> None:
        """Request this rank's part from the worker. Only the worker's first request in an update carries the model."""
        given = None if address in gathering.asked else model
        order = (self._pool.run_id, given, step, rank, size)
        on_end = self._pool.on_end(address, gathering.number)
        request = self._pool.calls.request(address, service.compute_gradients, *order, then=on_end)
        gathering.add(rank, address, request)

    def _free(self, team: list[str]) -> list[str]:
        return [worker for worker in team if worker not in self._late]

    def _restart_hung(self, gathering: Gathering) -> None:
        """Restart members that do not answer, and members that are still computing long after the other members
        finished.
        """
        patience = self._run.spec.patience_seconds
        now = time.monotonic()
        if now - gathering.answered_at > patience:
            self._pool.restart_unresponsive([copy.worker for copy in gathering.under_way()], self._run.note)
            gathering.answered_at = time.monotonic()
        if now - gathering.first_ended_at > patience + membership.STUCK_SECONDS:
            self._pool.restart([copy.worker for copy in gathering.under_way()], self._run.note, membership.STUCK)
            gathering.first_ended_at = math.inf

    def _recover(self, members: list[str], gathering: Gathering) -> None:
        """Leave out workers with a fault and restart hung workers, so that the update can be tried again."""
        cause = "a worker was lost"
        for address, fault in gathering.faults.items():
            cause = f"worker {address} was left out: {fault}"
            self._pool.leave_out(address, fault)
        self._pool.restart_unresponsive([m for m in members if m not in gathering.faults], self._run.note)
        self._handle_events(_TICK_SECONDS)  # handles the lost worker's Left, so that the next attempt is without it
        self._run.record_recovery(cause)

    def _part_with(self, gathering: Gathering) -> None:
        """Leave out the late and the faulty workers after an update; other workers have computed their parts."""
        self._late.after(gathering.under_way(), gathering.in_time())
        self._leave_out_faulty(gathering)
        if gathering.num_backups:
            first = sum(copy.is_backup for copy in gathering.first_copies())
            self._run.publish(ExchangeFigures(backups=gathering.num_backups, backups_first=first))

    def _leave_out_faulty(self, gathering: Gathering) -> None:
        for address, fault in gathering.faults.items():
            self._run.note(f"worker {address} was left out: {fault}")
            self._pool.leave_out(address, fault)

    def _handle_events(self, seconds: float) -> None:
        self._pool.drain_events(seconds, self._handle)
        self._pool.admit_held(self._replica.position.update)
        self._late.watch()

    def _handle(self, event: Event) -> None:
        self._pool.follow(event)
        self._late.follow(event)
        if self._now is not None:
            self._now.follow(event)

    def _record_resize(self, step: Step, size: int) -> None:
        before = self._size
        self._size = size
        if before != size:
            self._stopwatch = Stopwatch()
        if before not in (0, size):
            pause = time.perf_counter() - self._committed_at
            self._run.record_resize(step.position.update, before, size, pause)
