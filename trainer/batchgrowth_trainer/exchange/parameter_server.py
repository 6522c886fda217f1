"""ParameterServer: each member is a worker, and the server of a slice of the parameters.

A server adds the gradients of its slice along the fixed tree, takes the optimizer's step on it alone, and sends the new
weights to all. Only the server's copy of what the optimizer keeps for the slice is followed; at the end of a round,
which has 16 updates at most, members swap these, so all have the same state. How long a round is changes no bit.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.schedule.stages import Step
from torch import Tensor

from batchgrowth_trainer.exchange.all_reduce import run_of
from batchgrowth_trainer.exchange.reduction import Reduction, bytes_scattered, bytes_sent, length_of
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.replica.growth import Stopwatch
from batchgrowth_trainer.replica.optimizers import FlatOptimizer
from batchgrowth_trainer.replica.replica import norms_of, undone_by_errors
from batchgrowth_trainer.replica.rows import Committed

_UPDATES = 16  # in a round


class ParameterServer:
    """See Strategy."""

    def __init__(self, setting: Setting) -> None:
        """Raises WorkloadError if there is more than one server, and the optimizer's parameters cannot be divided."""
        replica, group = self._replica, self._group = setting.replica, setting.group
        self._watched = setting.watched
        self._gradients, self._rest = Reduction(group), Reduction(group)
        self._run_of = partial(run_of, group.rank, group.size)
        self._room = torch.empty(replica.length, device=replica.device)
        cuts = _cuts(setting)
        self._places, self._numbers = replica.parameters.places(cuts), [slice(*pair) for pair in pairwise(cuts)]
        self._place, self._lengths = self._places[group.rank], replica.parameters.lengths[self._numbers[group.rank]]
        whole = replica.optimizer
        self._optimizer = whole.within(self._place) if isinstance(whole, FlatOptimizer) else whole
        self._norms = torch.zeros(len(replica.parameters.spans), device=replica.device)
        self._stopwatch = Stopwatch()
        self._exchange_seconds, self._wait_seconds = 0.0, 0.0

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Sixteen updates at most: an epoch's end and a requested stop end it too."""
        replica, began = self._replica, time.perf_counter()
        self._exchange_seconds, self._wait_seconds = 0.0, 0.0
        done: list[tuple[Step, Committed]] = []
        with undone_by_errors(replica):
            while not self._is_over(done):
                done.append(self._update(stop=stop_requested()))
            sent = self._swap_state() + sum(self._bytes_sent(step.shards) for step, _ in done)
        waited, exchanged = self._wait_seconds, self._exchange_seconds - self._wait_seconds
        computed = time.perf_counter() - began - self._exchange_seconds
        return Round(tuple(done), done[-1][1].stop, computed, exchanged, waited, sent)

    def _is_over(self, done: Sequence[tuple[Step, Committed]]) -> bool:
        """Whether the round ends after these updates; at an epoch's end an evaluation may be due."""
        if not done:
            return False
        (step, last), replica = done[-1], self._replica
        is_final = not step.after.offset or replica.plan.is_done(replica.position)
        return len(done) == _UPDATES or last.stop or is_final

    def _update(self, *, stop: bool) -> tuple[Step, Committed]:
        replica, group = self._replica, self._group
        step, began = replica.plan.step_at(replica.position), time.perf_counter()
        with self._watched:
            partials = replica.partials(step, self._run_of(step), stop=stop, runs=self._run_of)
        if group.rank == 0:  # which has shard 0
            replica.write_timing(partials[0].row, self._stopwatch.timing)
        gradient, rest = self._added([node.row for node in partials], step.shards)
        gradient.div_(step.examples)
        if self._lengths:
            self._norms[self._numbers[group.rank]] = norms_of(gradient, self._lengths)
        self._gather(self._norms, self._numbers)
        sums, size, learning_rate = replica.read(step, rest, self._norms)
        replica.buffers.follow(rest, step.examples)
        if self._lengths:
            replica.move(step, gradient, size, learning_rate, self._optimizer, self._place)
        self._gather(replica.parameters.vector.data, self._places)
        done = replica.advanced(step, sums, size, learning_rate)
        replica.rows.release(partials)
        self._stopwatch.lap(step, group.size, time.perf_counter() - began)
        return step, done

    def _added(self, rows: list[Tensor], shards: int) -> tuple[Tensor, Tensor]:
        """The total gradient of this server's parameters, and what follows the gradient in the total of the rows."""
        began, cut = time.perf_counter(), self._replica.parameters.length
        room = self._room
        gradient = self._gradients.reduce_scatter([row[:cut] for row in rows], shards, self._places, room[:cut])
        rest = self._rest([row[cut:] for row in rows], shards, room[cut:])
        self._exchange_seconds += time.perf_counter() - began
        self._wait_seconds += gradient.wait_seconds + rest.wait_seconds
        return gradient.total, rest.total

    def _gather(self, vector: Tensor, spans: list[slice]) -> None:
        began = time.perf_counter()
        self._gradients.all_gather(vector, spans)
        self._exchange_seconds += time.perf_counter() - began

    def _swap_state(self) -> int:
        """Give all members what each server has followed of the optimizer's state and the average; the bytes of it."""
        replica, sent = self._replica, 0
        kept = list(replica.optimizer.state.values())
        for vector in kept if replica.average is None else [*kept, replica.average.vector]:
            self._gather(vector, self._spans_of(vector))
            sent += (self._group.size - 1) * vector.nbytes
        return sent

    def _spans_of(self, vector: Tensor) -> list[slice]:
        """Each server's slice of a vector of the state; one that has not the parameters' length has one server."""
        length = self._replica.parameters.length
        if len(vector) == length:
            return self._places
        return [slice(0, len(vector) if length_of(place) == length else 0) for place in self._places]

    def _bytes_sent(self, shards: int) -> int:
        """Those of all members for an update: gradients and weights, what follows the gradient, and the norms."""
        replica, size = self._replica, self._group.size
        rest = bytes_sent(shards, size, replica.length - replica.parameters.length)
        return bytes_scattered(shards, self._places) + rest + (size - 1) * self._norms.nbytes


def _cuts(setting: Setting) -> list[int]:
    """The numbers of the parameters at which the members' slices begin; server s of S is in member s * P // S of P."""
    replica, members = setting.replica, setting.group.size
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
