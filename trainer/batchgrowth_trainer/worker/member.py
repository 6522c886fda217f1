"""A member of the group, inside a Dask worker: it holds a replica and trains it, one generation after another.

Dask brings it here as one long task per generation and carries the driver's few wishes; inside an update there is
nothing but the arithmetic and the group.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from batchgrowth.errors import BatchGrowthError
from batchgrowth.evaluation import evaluation_due
from batchgrowth.plan import Plan, Position, Step
from batchgrowth.spec import JobSpec
from torch import Tensor

from batchgrowth_trainer.exchange.group import Group, PeerLost, Seat, form_group, send_state, swap_with_all
from batchgrowth_trainer.exchange.reduction import Reduction, bytes_sent
from batchgrowth_trainer.replica.building import build_replica
from batchgrowth_trainer.replica.devices import prepare_process
from batchgrowth_trainer.replica.evaluation import evaluate
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.tree import lay_out
from batchgrowth_trainer.worker.control import Control

_KEPT_ROWS = 4096  # rows a member remembers, so that its driver misses none when the one who reports dies
_REPORT_SECONDS = 0.2
_KEPT_EVALUATIONS = 64

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Order:
    """One generation: a seat in its group, and where to end.

    It ends before update `until`; epochs up to `evaluated` have been evaluated, rows up to `reported` have been seen.
    """

    seat: Seat
    generation: int
    backend: str
    until: int
    evaluated: int
    reported: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a generation ended for one member; `error` is what the workload did wrong, `lost` that a peer went away."""

    update: int
    lost: str = ""
    error: BatchGrowthError | None = None


class Member:
    """A replica with its control; lives as long as the worker's process."""

    def __init__(self, spec: JobSpec, plan: Plan) -> None:
        self.replica = build_replica(spec, plan)
        self.control = Control(self.replica.snapshot)
        self._rows: deque[tuple[float, ...]] = deque(maxlen=_KEPT_ROWS)
        self._evaluations: deque[dict[str, Any]] = deque(maxlen=_KEPT_EVALUATIONS)
        self._idle_since: tuple[int, float] = (-1, 0.0)

    def train(self, order: Order, report: Report) -> Outcome:
        """Train until the order's end, a stop, or the loss of a peer.

        A lost peer or a wrong workload is part of the outcome, not raised.
        """
        prepare_process(self.replica.spec)
        self.control.training(True)
        group: Group | None = None
        try:
            group = form_group(order.seat, order.backend)
            self._catch_up(group)
            _Generation(self, order, group, report).run()
            return Outcome(self.replica.position.update)
        except PeerLost as error:
            return Outcome(self.replica.position.update, lost=str(error))
        except BatchGrowthError as error:
            return Outcome(self.replica.position.update, error=error)
        finally:
            self.control.training(False)
            if group is not None:
                group.close()

    def partial_rows(
        self, model: Mapping[str, np.ndarray], position: Position, rank: int, size: int
    ) -> list[np.ndarray]:
        """The rows of this member's nodes of the update at `position`, computed with another process's model."""
        prepare_process(self.replica.spec)
        for name, vector in self.replica.model_tensors().items():
            vector.copy_(torch.from_numpy(np.array(model[name])))
        step = self.replica.plan.step_at(position)
        partials = self.replica.partials(step, lay_out(step.shards, size).runs[rank])
        rows = [p.row.cpu().numpy().copy() for p in partials]
        self.replica.release(partials)
        return rows

    def _catch_up(self, group: Group) -> None:
        """Everybody takes the most advanced committed state. Any state of an update is *the* state of that update."""
        here = self.replica.position
        mine = torch.tensor([here.update, here.epoch, here.offset])
        places = [place.tolist() for place in swap_with_all(group, mine)]
        best = max(place[0] for place in places)
        source = next(rank for rank, place in enumerate(places) if place[0] == best)
        needy = [rank for rank, place in enumerate(places) if place[0] != best]
        if not needy:
            return
        send_state(group, source, needy, list(self.replica.tensors().values()))
        if group.rank in needy:
            self.replica.position = Position(*places[source])

    def untold(self, reported: int, evaluated: int) -> tuple[dict[str, Any], ...]:
        """What a driver has not heard that knows rows up to `reported` and evaluations up to `evaluated`, as reports.

        May be asked for while another thread trains.
        """
        rows, evaluations = self.rows_after(reported), tuple(self._evaluations)
        told: list[dict[str, Any]] = [{"kind": "rows", "rows": rows, "bytes": 0}] if rows else []
        return (*told, *(evaluation for evaluation in evaluations if evaluation["epoch"] > evaluated))

    def remember(self, row: tuple[float, ...]) -> None:
        """Keep an update's row."""
        self._rows.append(row)
        self.mark_idle()

    def remember_evaluation(self, told: dict[str, Any]) -> None:
        """Keep an evaluation."""
        self._evaluations.append(told)
        self.mark_idle()

    def mark_idle(self) -> None:
        """Note that from here on this member computes nothing until its next update begins."""
        self._idle_since = (self.replica.position.update, time.perf_counter())

    def rows_after(self, update: int) -> list[tuple[float, ...]]:
        """The rows of later updates that are still remembered."""
        return [row for row in tuple(self._rows) if row[0] > update]

    def pause(self) -> float | None:
        """Seconds since this process had its last work of this run; None where it was not there."""
        update, since = self._idle_since
        return time.perf_counter() - since if update == self.replica.position.update else None


class _Generation:
    """One generation's loop."""

    def __init__(self, member: Member, order: Order, group: Group, report: Report) -> None:
        self._member, self._replica, self._order, self._group = member, member.replica, order, group
        self._report = report
        self._reduction = Reduction(group)
        self._reports = group.rank == 0
        self._reported = order.reported
        self._reported_at = time.perf_counter()
        self._evaluated = order.evaluated
        self._bytes = 0  # sent by all members together since the last report
        self._like = torch.empty(self._replica.length, device=self._replica.device)

    def run(self) -> None:
        """Update after update, until the end of the order or of the plan, or a stop that everybody hears of."""
        self._say_began()
        stop = False
        while True:
            self._evaluate_if_due()
            self._member.control.at_boundary()
            if stop or self._replica.position.update >= self._order.until:
                break
            if self._member.control.abandoned:
                raise PeerLost("another driver has taken over")
            stop = self._update(self._replica.plan.step_at(self._replica.position))
        self._send_rows()

    def _update(self, step: Step) -> bool:
        replica, runs = self._replica, lay_out(step.shards, self._group.size).runs
        began = time.perf_counter()
        stop = self._reports and self._member.control.asks_stop(self._order.generation)
        partials = replica.partials(step, runs[self._group.rank], stop=stop)
        computed = time.perf_counter()
        reduced = self._reduction([p.row for p in partials], step.shards, self._like)
        exchanged = time.perf_counter()
        done = replica.commit(step, reduced.total)
        replica.release(partials)
        now = time.perf_counter()
        waited = reduced.wait_seconds
        compute, exchange = computed - began + now - exchanged, exchanged - computed - waited
        row = (step.position.update + 1, _epochs(replica), step.stage, step.batch_size, step.learning_rate, done.loss,
               self._group.size, compute, exchange, waited, time.time())  # fmt: skip
        self._member.remember(row)
        self._bytes += bytes_sent(step.shards, self._group.size, self._replica.length)
        if self._reports and now - self._reported_at > _REPORT_SECONDS:
            self._send_rows()
        return done.stop

    def _say_began(self) -> None:
        self._report(
            {
                "kind": "began",
                "generation": self._order.generation,
                "update": self._replica.position.update,
                "size": self._group.size,
                "rank": self._group.rank,
                "pause": self._member.pause(),
            }
        )

    def _send_rows(self) -> None:
        if not self._reports:
            return
        rows = self._member.rows_after(self._reported)
        if rows:
            self._report({"kind": "rows", "rows": rows, "bytes": self._bytes})
            self._reported, self._bytes = int(rows[-1][0]), 0
        self._reported_at = time.perf_counter()

    def _evaluate_if_due(self) -> None:
        replica = self._replica
        if not evaluation_due(replica.spec, replica.plan, replica.position, self._evaluated):
            return
        values = evaluate(replica, self._group.rank, self._group.size, self._reduce)
        self._evaluated = replica.position.epoch
        told = {"kind": "evaluation", "values": values, "at": time.time(), **asdict(replica.position)}
        self._member.remember_evaluation(told)
        if self._reports:
            self._send_rows()
            self._report(told)

    def _reduce(self, rows: Sequence[Tensor], shards: int, like: Tensor) -> Tensor:
        return Reduction(self._group)(rows, shards, like).total


def _epochs(replica: Replica) -> float:
    return replica.position.epoch + replica.position.offset / replica.plan.examples_per_epoch
