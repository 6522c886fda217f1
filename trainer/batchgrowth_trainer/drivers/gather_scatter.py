"""GatherScatter: one server holds the model; workers send gradients, it steps and scatters the model, by Dask tasks.

The paper's centralised, synchronous scheme (AdaDamp over Dask; CS744 report, task 2A).  The server is the driver.
Each update is one task per worker, so workers come and go between updates at no cost, and losing one costs that
update's gradients.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from batchgrowth.plan import Step
from distributed import Future

from batchgrowth_trainer.crew.connection import SchedulerLost
from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.crew.events import Ended, Event, Left
from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.drivers.scaling import Scaling
from batchgrowth_trainer.drivers.single_process import only_one
from batchgrowth_trainer.drivers.workforce import Join
from batchgrowth_trainer.record.snapshot import Trained
from batchgrowth_trainer.replica.building import build_replica
from batchgrowth_trainer.replica.evaluation import evaluate
from batchgrowth_trainer.replica.tree import add_up, lay_out
from batchgrowth_trainer.worker import service

_TICK_SECONDS = 0.05


@dataclass(slots=True)
class _Gathering:
    """One try at one update: what each member was asked for, and what has come back."""

    number: int
    futures: dict[str, Future] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)


class GatherScatterDriver:
    """The server: replica, optimizer and the order of additions are here; the workers only compute gradients."""

    def __init__(self, run: Run, crew: Crew, scaling: Scaling) -> None:
        self._run, self._crew, self._scaling = run, crew, scaling
        self._replica = build_replica(run.spec, run.plan)
        self._number = 0
        self._now: _Gathering | None = None
        self._members: list[str] = []
        self._committed_at = time.perf_counter()

    def train(self) -> Trained:
        """Train to the end of the plan or until a stop is asked for.

        Raises what a workload did wrong, and ClusterError where no worker comes or they are lost again and again.
        """
        run, replica = self._run, self._replica
        saved = run.checkpoint_after(0)
        if saved is not None:
            replica.restore(saved.snapshot)
        try:
            return self._train()
        except SchedulerLost:
            run.save(replica.snapshot())  # the state is here, and whoever finds the next scheduler goes on from it
            raise

    def _train(self) -> Trained:
        run, replica = self._run, self._replica
        while True:
            if run.evaluation_due(replica.position):
                run.note_evaluation(replica.position, evaluate(replica, 0, 1, only_one), time.time())
                self._committed_at = time.perf_counter()
            if run.stop_requested() or run.plan.is_done(replica.position):
                return Trained(replica.snapshot(), replica.state_dict())
            if run.checkpoint_due():
                run.save(replica.snapshot())
            self._update(run.plan.step_at(replica.position))

    def _update(self, step: Step) -> None:
        members = self._scaling.gather(self._attend, {})
        if not members:
            return
        began = time.perf_counter()
        answers = self._gathered(step, members)
        if answers is None:
            self._attend(_TICK_SECONDS)  # the news of it, so that nobody counts on it again
            self._run.note_recovery("a worker went away")
            return
        sent = len(members) * sum(t.nbytes for t in self._replica.model_tensors().values())
        self._run.note_sent(sent + sum(row.nbytes for answer in answers for row in answer.rows))
        rows = [torch.from_numpy(np.array(row)).to(self._replica.device) for answer in answers for row in answer.rows]
        done = self._replica.commit(step, add_up(rows, lay_out(step.shards, len(members))))
        self._note(step, members, done.loss, began, [answer.seconds for answer in answers])

    def _gathered(self, step: Step, members: list[str]) -> list[service.Gradients] | None:
        """Each member's rows, in the order of the ranks; None where a member went away."""
        self._number += 1
        present = self._now = _Gathering(self._number)
        tensors = {name: t.detach().cpu().numpy() for name, t in self._replica.model_tensors().items()}
        patience = self._run.spec.exchange.timeout_seconds
        models = self._crew.scatter(tensors, members, patience)
        if models is None:
            self._wake(members)
            return None
        for rank, (address, model) in enumerate(zip(members, models, strict=True)):
            order = (self._crew.run_id, model, step.position, rank, len(members))
            future = self._crew.submit(address, service.compute_gradients, *order)
            present.futures[address] = future
            future.add_done_callback(self._crew.announce(address, present.number))
        self._note_members(step, members)
        deadline = time.monotonic() + patience
        while len(present.ended) < len(members) and not present.gone:
            self._attend(_TICK_SECONDS)
            self._crew.check_connected()
            if time.monotonic() > deadline:
                self._wake([address for address in members if address not in present.ended])
                deadline = time.monotonic() + patience
        self._now = None
        if present.gone:
            for future in present.futures.values():
                future.cancel()
            return None
        answers = self._crew.gather(present.futures, patience)
        if answers is None:
            self._wake(members)
        return answers

    def _wake(self, members: list[str]) -> None:
        """A member that does not answer hangs, or is gone; its nanny starts it anew."""
        for address in self._crew.silent(members):
            self._run.note(f"worker {address} does not answer; it is started anew")
            self._crew.restart(address)

    def _attend(self, seconds: float) -> None:
        self._crew.attend(seconds, self._take_note)

    def _take_note(self, event: Event) -> None:
        self._crew.take_note(event)
        present = self._now
        if present is None:
            return
        if isinstance(event, Left) and event.address in present.futures:
            present.gone.add(event.address)
        elif isinstance(event, Ended) and event.generation == present.number:
            if event.is_lost():
                present.gone.add(event.address)
            present.ended.add(event.address)

    def _note_members(self, step: Step, members: list[str]) -> None:
        before, self._members = len(self._members), members
        if before not in (0, len(members)):
            self._run.note_resize(step.position.update, before, len(members), time.perf_counter() - self._committed_at)

    def _note(self, step: Step, members: list[str], loss: float, began: float, seconds: list[float]) -> None:
        now = self._committed_at = time.perf_counter()
        epoch = step.after.epoch + step.after.offset / self._run.plan.examples_per_epoch
        longest, wait = max(seconds), max(seconds) - min(seconds)
        self._run.note_rows([(step.after.update, epoch, step.stage, step.batch_size, step.learning_rate, loss,
                              len(members), longest, max(0.0, now - began - longest), wait, time.time())])  # fmt: skip


def train(run: Run, join: Join) -> Trained:
    """Train with GatherScatter. See GatherScatterDriver.train."""
    with join() as force:
        return GatherScatterDriver(run, force.crew, force.scaling).train()
