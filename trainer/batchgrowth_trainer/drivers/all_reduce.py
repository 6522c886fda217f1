"""AllReduce: the workers add among themselves and every worker steps (dask-pytorch-ddp's shape, made elastic).

One long Dask task per worker and generation. A generation lasts until the plan wants another number of workers, a
worker is ready to join, one is lost, or the run ends; the next one begins from the most advanced committed state among
its members.  Losing a worker costs the update that was under way; losing all of them, the updates since the checkpoint.
"""

from __future__ import annotations

import time
from typing import Any

from batchgrowth.plan import Position

from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.crew.events import Ended, Event, Left, Said
from batchgrowth_trainer.drivers.generation import Generation, backend_of
from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.drivers.scaling import Scaling
from batchgrowth_trainer.drivers.states import States
from batchgrowth_trainer.drivers.workforce import Join
from batchgrowth_trainer.exchange.group import Seat
from batchgrowth_trainer.exchange.rendezvous import Rendezvous
from batchgrowth_trainer.record.snapshot import Trained
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.addresses import host_and_port
from batchgrowth_trainer.worker.member import Order, Outcome

_TICK_SECONDS = 0.05
_ASK_AGAIN_SECONDS = 5.0
_SILENCE_SECONDS = 10.0  # without a word from a generation, its members are asked whether they live


class AllReduceDriver:
    """Brings generation after generation to the members until the plan is done."""

    def __init__(self, run: Run, crew: Crew, scaling: Scaling, host: str) -> None:
        self._run, self._crew, self._scaling, self._host = run, crew, scaling, host
        self._number = 0
        self._states = States(run, crew, self._hear)
        self._ended_at = time.monotonic()  # the last generation
        self._size = 0  # of the last generation that began
        self._now: Generation | None = None
        self._rendezvous: Rendezvous | None = None

    def train(self) -> Trained:
        """Train to the end of the plan or until a stop is asked for.

        Raises what a workload did wrong, and ClusterError where no worker comes or they are lost again and again.
        """
        while True:
            members = self._scaling.gather(self._attend, self._states.updates)
            if members and not self._states.can_go_on(members):
                self._attend(_TICK_SECONDS)
                continue
            if self._run.stop_requested() or self._is_done():
                trained = self._states.trained()
                if trained is not None:
                    return trained
                self._states.updates.clear()
                self._run.note_recovery("the last state was lost with its worker")
            else:
                self._one_generation(members)

    def _is_done(self) -> bool:
        return self._run.plan.is_done(self._run.position) and not self._run.evaluation_due(self._run.position)

    # --- one generation ---------------------------------------------------------------------------------------

    def _one_generation(self, members: list[str]) -> None:
        self._number += 1
        with Rendezvous(self._host) as self._rendezvous:
            present = self._now = Generation(self._number, members)
            for rank, address in enumerate(members):
                future = self._crew.submit(address, service.train_generation, self._crew.run_id, self._order(rank))
                present.futures[address] = future
                future.add_done_callback(self._crew.announce(address, self._number))
            while not present.over:
                self._attend(_TICK_SECONDS)
                self._look_after(present)
        self._now = self._rendezvous = None
        self._ended_at = time.monotonic()
        self._conclude(present)

    def _order(self, rank: int) -> Order:
        assert self._now is not None
        assert self._rendezvous is not None
        members = self._now.members
        seat = Seat(
            host=self._host,
            port=self._rendezvous.port,
            generation=str(self._number),
            rank=rank,
            size=len(members),
            address=host_and_port(members[rank])[0],
            timeout_seconds=self._run.spec.exchange.timeout_seconds,
        )
        return Order(
            seat=seat,
            generation=self._number,
            backend=backend_of([self._crew.ready[address] for address in members]),
            until=self._scaling.ends_at(len(members)),
            evaluated=self._run.story.evaluated,
            reported=self._run.reported,
        )

    def _look_after(self, present: Generation) -> None:
        self._scaling.tick(present.members)
        asked = time.monotonic() - present.asked_at < _ASK_AGAIN_SECONDS
        if not asked and not present.outcomes and self._should_stop(present):
            present.stopping, present.asked_at = True, time.monotonic()
            self._crew.tell(service.request_stop, self._crew.run_id, present.number, worker=present.members[0])
        if self._run.checkpoint_due() and not present.stopping and not present.outcomes:
            self._states.save(present.members[0])
        if time.monotonic() - present.heard > _SILENCE_SECONDS:
            self._wake(present)

    def _should_stop(self, present: Generation) -> bool:
        return self._run.stop_requested() or self._scaling.regroup_due(present.members)

    def _wake(self, present: Generation) -> None:
        """A member that does not answer hangs: its nanny ends it, which the others feel at once."""
        present.heard = time.monotonic()
        for address in self._crew.silent([m for m in present.members if m not in present.outcomes]):
            self._run.note(f"worker {address} does not answer; it is started anew")
            self._crew.restart(address)

    # --- events -----------------------------------------------------------------------------------------------

    def _attend(self, seconds: float) -> None:
        self._crew.attend(seconds, self._take_note)

    def _take_note(self, event: Event) -> None:
        self._crew.take_note(event)
        if isinstance(event, Left):
            self._states.updates.pop(event.address, None)
            if self._now is not None and event.address in self._now.members:
                self._end(self._now, event.address, None)
        elif isinstance(event, Said):
            self._hear(event.message)
        elif isinstance(event, Ended) and self._now is not None and event.generation == self._now.number:
            answers = None if event.is_lost() else self._crew.gather({event.address: event.future}, _SILENCE_SECONDS)
            self._end(self._now, event.address, answers[0] if answers else None)

    def _end(self, present: Generation, address: str, outcome: Outcome | None) -> None:
        present.heard = time.monotonic()
        present.outcomes.setdefault(address, outcome)
        if outcome is None:
            present.futures[address].cancel()
        if (outcome is None or outcome.lost or outcome.error) and self._rendezvous is not None:
            self._rendezvous.close()

    def _hear(self, message: dict[str, Any]) -> None:
        if self._now is not None:
            self._now.heard = time.monotonic()
        if message["kind"] == "rows":
            self._run.note_rows(message["rows"])
            self._run.note_sent(message["bytes"])
        elif message["kind"] == "evaluation":
            position = Position(message["update"], message["epoch"], message["offset"])
            self._run.note_evaluation(position, message["values"], message["at"])
        elif message["kind"] == "began" and self._now is not None and message["generation"] == self._now.number:
            self._now.pauses[message["rank"]] = message["pause"]
            self._note_resize(self._now, message["update"])

    def _note_resize(self, present: Generation, update: int) -> None:
        pause, size = present.pause(time.monotonic() - self._ended_at), len(present.members)
        if pause is None:
            return
        if self._size not in (0, size):
            self._run.note_resize(update, self._size, size, pause)
        self._size = size

    def _conclude(self, present: Generation) -> None:
        for address, outcome in present.outcomes.items():
            if outcome is not None and outcome.error is not None:
                self._states.take_reports(address)
                raise outcome.error
        self._states.updates |= present.updates
        if self._states.updates:
            self._run.reach(max(self._states.updates.values()))
        self._states.part_with_leavers()
        if present.lost:
            self._run.note_recovery(present.lost)
            for address in self._crew.silent(list(present.updates)):
                self._crew.restart(address)


def train(run: Run, join: Join) -> Trained:
    """Train with AllReduce. See AllReduceDriver.train."""
    with join() as force:
        return AllReduceDriver(run, force.crew, force.scaling, force.host).train()
