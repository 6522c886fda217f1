"""ParameterServer: each member is a worker, and also the server for a slice of the parameters.

A server adds the gradients of its slice along the fixed tree, takes the optimizer's step on it alone, and sends the new
weights to all. Only the server updates the optimizer's state of its slice. At the end of a round, which has at most 16
updates, members swap these states, so all have the same. The length of a round changes no bit.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.plan import Step
from torch import Tensor

from batchgrowth_trainer.exchange.all_reduce import Reduction, length_of
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.record.history import Committed
from batchgrowth_trainer.replica.data import run_of
from batchgrowth_trainer.replica.decisions import Stopwatch
from batchgrowth_trainer.replica.optimizers import FlatOptimizer
from batchgrowth_trainer.replica.replica import Part, norms_of, undone_by_errors

_UPDATES = 16  # in a round


class ParameterServer:
    """The strategy of ParameterServer."""

    def __init__(self, setting: Setting) -> None:
        """Raise WorkloadError if the job asks for several servers and its optimizer needs all parameters at once."""
        replica = setting.replica
        group = setting.group
        self._replica = replica
        self._group = group
        self._watchdog = setting.watchdog
        self._gradients = Reduction(group)
        self._rest = Reduction(group)
        self._run_of = partial(run_of, group.rank, group.size)
        self._room = torch.empty(replica.length, dtype=torch.float32, device=replica.device)
        cuts = _cuts(setting)
        self.places = replica.parameters.places(cuts)
        self._numbers = [slice(lo, hi) for lo, hi in pairwise(cuts)]  # of the parameters, by rank
        self._lengths = replica.parameters.lengths[self._numbers[group.rank]]
        self._norms = torch.zeros(len(replica.parameters.spans), dtype=torch.float32, device=replica.device)
        place = self.places[group.rank]
        optimizer = replica.optimizer if self._lengths else None
        # Any other optimizer takes all parameters at once, and `_cuts` has given it a single server.
        if isinstance(optimizer, FlatOptimizer):
            optimizer = optimizer.within(place)
        self._part = Part(place, optimizer, self._norms_of_all)
        self._stopwatch = Stopwatch()
        self._exchange_seconds = 0.0
        self._wait_seconds = 0.0

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Make at most sixteen updates; an epoch's end and a requested stop also end the round."""
        replica = self._replica
        began = time.perf_counter()
        self._exchange_seconds = 0.0
        self._wait_seconds = 0.0
        done: list[tuple[Step, Committed]] = []
        with undone_by_errors(replica):
            while not self._is_over(done):
                done.append(self._update(stop=stop_requested()))
            self._swap_state()
        return Round(
            done=tuple(done),
            stop=done[-1][1].stop,
            compute_seconds=time.perf_counter() - began - self._exchange_seconds,
            exchange_seconds=self._exchange_seconds - self._wait_seconds,
            wait_seconds=self._wait_seconds,
        )

    def _is_over(self, done: Sequence[tuple[Step, Committed]]) -> bool:
        """Return whether the round ends after these updates, as at an epoch's end, when an evaluation may be due."""
        if not done:
            return False
        step, last = done[-1]
        is_final = not step.after.offset or self._replica.plan.is_done(self._replica.position)
        return len(done) == _UPDATES or last.stop or is_final

    def _update(self, *, stop: bool) -> tuple[Step, Committed]:
        """Make one update: add this member's shards, reduce its slice, step on the slice, and swap the new weights."""
        replica = self._replica
        group = self._group
        step = replica.plan.step_at(replica.position)
        began = time.perf_counter()
        with self._watchdog:
            partials = replica.partials(step, self._run_of(step), stop=stop, runs=self._run_of)
        if group.rank == 0:  # which has shard 0
            replica.tail.write_timing(partials[0].row, self._stopwatch.timing)
        gradient, rest = self._added([node.row for node in partials], step.shards)
        taken = replica.take_step(step, gradient, rest, step.examples, self._part)
        self._gather(replica.parameters.vector.data, self.places)
        done = replica.advance(step, taken)
        replica.rows.release(partials)  # not before: the totals may be in these rows
        self._stopwatch.lap(step, group.size, time.perf_counter() - began)
        return step, done

    def _norms_of_all(self, gradient: Tensor) -> Tensor:
        """Return all parameters' gradient norms: compute the norms of this server's slice, and gather the others."""
        if self._lengths:
            self._norms[self._numbers[self._group.rank]] = norms_of(gradient, self._lengths)
        self._gather(self._norms, self._numbers)
        return self._norms

    def _added(self, rows: list[Tensor], shards: int) -> tuple[Tensor, Tensor]:
        """Return the total gradient of this server's parameters, and the rest of the total after the gradient."""
        began = time.perf_counter()
        cut = self._replica.parameters.length
        room = self._room
        gradient = self._gradients.reduce_scatter([row[:cut] for row in rows], shards, self.places, room[:cut])
        rest = self._rest([row[cut:] for row in rows], shards, room[cut:])
        self._exchange_seconds += time.perf_counter() - began
        self._wait_seconds += gradient.wait_seconds + rest.wait_seconds
        return gradient.total, rest.total

    def _gather(self, vector: Tensor, spans: list[slice]) -> None:
        began = time.perf_counter()
        self._gradients.all_gather(vector, spans)
        self._exchange_seconds += time.perf_counter() - began

    def _swap_state(self) -> None:
        """Send each server's part of the optimizer's state and of the average to all members."""
        replica = self._replica
        kept = list(replica.optimizer.state.values())
        if replica.average is not None:
            kept.append(replica.average.vector)
        length = replica.parameters.length
        for vector in kept:
            spans = self.places
            if len(vector) != length:
                # A state vector that is longer or shorter than the parameters belongs to a single server.
                spans = [slice(0, len(vector) if length_of(place) == length else 0) for place in self.places]
            self._gather(vector, spans)


def _cuts(setting: Setting) -> list[int]:
    """Return the indices of the parameters at which the members' slices begin.

    Server s of S is in member s * P // S of P.
    """
    replica = setting.replica
    members = setting.group.size
    asked = replica.spec.exchange.settings.servers
    servers = asked or members
    if not isinstance(replica.optimizer, FlatOptimizer):
        if servers > 1 and asked:
            raise WorkloadError(
                f"exchange.parameterServer.servers: give 1 with optimizer {replica.spec.optimizer.type}, which "
                "needs all parameters at once, or leave it out"
            )
        servers = 1
    of_servers = replica.parameters.cuts(servers)
    return [of_servers[-(-member * servers // members)] for member in range(members + 1)]
