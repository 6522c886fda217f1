"""Logical replicas: each has its own state, steps by itself, and from time to time exchanges with other replicas.

The states of Gossip's, ElasticAveraging's and TopK's replicas are here; TopK adds its residuals to them.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice

import torch
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.plan import Step, rounds_from
from batchgrowth.shards import lay_out, shard_bounds
from torch import Tensor

from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.record.history import Committed
from batchgrowth_trainer.replica.data import Request
from batchgrowth_trainer.replica.replica import Replica


class LocalUpdates:
    """Trains this member's replicas, numbered by `run`, one after another, each for some updates."""

    def __init__(self, setting: Setting) -> None:
        self._replica = setting.replica
        self._check = setting.check
        exchange = self._replica.spec.exchange
        self.replicas = exchange.replicas
        self._every = exchange.settings.every_updates
        self.run = lay_out(self.replicas, setting.group.size).runs[setting.group.rank]

    def make(self, number: int, steps: Sequence[Step], losses: Tensor) -> int:
        """Make these updates as replica `number`, with the state that the model has; return the number of examples.

        Writes the sum of the losses of each update's examples into `losses`. Raises PeerLost once the generation is
        over, and the errors of a replica.
        """
        replica = self._replica
        seen = 0
        for index, step in enumerate(steps):
            run, examples = share_of(step, number, self.replicas)
            if examples:
                partials = replica.sums(step, (run,), partial(self._ahead, number, index, steps))
                gradient, rest = replica.split(partials[0].row)
                losses[index] = replica.take_step(step, gradient, rest, examples).loss
                replica.rows.release(partials)
                seen += examples
            self._check()
        return seen

    def _ahead(self, number: int, index: int, steps: Sequence[Step], shard: int) -> Iterator[Request]:
        """Yield this member's requests that follow that shard, replica by replica and update by update."""
        plan = self._replica.plan
        present = ((step, number) for step in steps[index:])
        others = ((step, later) for later in range(number + 1, self.run[1]) for step in steps)
        rounds = rounds_from(plan, steps[-1].after, self._every)
        future = ((step, each) for later in rounds for each in range(*self.run) for step in later)
        for step, replica in chain(present, others, future):
            run, examples = share_of(step, replica, self.replicas)
            if not examples:
                continue
            for each in range(*run):
                if step is not steps[index] or replica != number or each >= shard:
                    yield self._replica.requests.of(plan, step, each)


def share_of(step: Step, number: int, replicas: int) -> tuple[tuple[int, int], int]:
    """Return the shards of an update that a logical replica computes, and how many examples they have."""
    each = step.shards // replicas
    run = (number * each, (number + 1) * each)
    bounds = shard_bounds(step.examples, step.shards)
    return run, bounds[run[1]] - bounds[run[0]]


def committed(steps: Sequence[Step], losses: Sequence[float], *, stop: bool) -> tuple[tuple[Step, Committed], ...]:
    """Return the updates of a round. `losses[i]` is the sum over the examples of update i; unused places may follow.

    Their learning rates are those of the plan: a job with an inexact exchange measures nothing that could change them.
    """
    return tuple(
        (step, Committed(loss / step.examples, step.learning_rate, stop))
        for step, loss in zip(steps, losses, strict=False)
    )


# Every process has the states of all logical replicas, and trains some of them with its one model.

_PREFIX = "replicas."
_TURN = f"{_PREFIX}turn"
_WEIGHTS = "parameters"

State = dict[str, Tensor]
"""The vectors of one logical replica, by name."""


def register_copies(replica: Replica, **more: Tensor) -> None:
    """Register a state for each of the R logical replicas (the model's vectors and `more`), and a count of exchanges.

    If the exchange keeps residuals, as TopK does, the weights are not among them, since all replicas have the same.
    """
    for name, vector in (_live(replica) | more).items():
        replica.register(_PREFIX + name, vector.unsqueeze(0).repeat(replica.spec.exchange.replicas, 1))
    replica.register(_TURN, torch.zeros(1, dtype=torch.float64))


def _live(replica: Replica) -> dict[str, Tensor]:
    """Return the model's vectors of which each logical replica has its own copy."""
    vectors = replica.of_one()
    if replica.spec.exchange.entry.keeps == "Residual":
        del vectors[_WEIGHTS]
    return vectors


class ReplicaStates:
    """The states of all logical replicas at the last point at which all processes had the same states."""

    def __init__(self, replica: Replica) -> None:
        """Use what `register_copies` has registered."""
        self._replica = replica
        self._live = _live(replica)

    @property
    def turn(self) -> int:
        """Return the number of exchanges so far."""
        return int(self._replica.registered[_TURN].item())

    def stacked(self) -> dict[str, Tensor]:
        """Return a table for each vector, of shape (R, length), by name."""
        return {
            name.removeprefix(_PREFIX): table
            for name, table in self._replica.registered.items()
            if name.startswith(_PREFIX) and name != _TURN
        }

    def replace(self, tables: Mapping[str, Tensor]) -> None:
        """Replace the tables of these names."""
        for name, table in tables.items():
            self._replica.register(_PREFIX + name, table)

    def of(self, number: int) -> State:
        """Return a copy of the state of one replica."""
        return {name: table[number].clone() for name, table in self.stacked().items()}

    def load(self, state: State) -> None:
        """Write that state into the model."""
        for name, vector in self._live.items():
            vector.copy_(state[name])

    def store(self, state: State) -> None:
        """Read that state back from the model."""
        for name, vector in self._live.items():
            state[name].copy_(vector)

    def distance(self) -> float | None:
        """Return the root mean square distance of the replicas' weights from their mean; None if all have the same."""
        if _WEIGHTS not in self._live:
            return None
        weights = self.stacked()[_WEIGHTS].double()
        return float((weights - weights.mean(dim=0)).square().sum(dim=1).mean().sqrt())

    def load_mean(self, turn: int) -> None:
        """After `turn` exchanges, put the mean of all states into the model; the optimizer's vectors become 0.

        So the model depends only on the states, and not on which member trained them.
        """
        self._replica.registered[_TURN].fill_(turn)
        tables = self.stacked()
        for name, vector in self._live.items():
            if name.startswith("optimizer."):
                vector.zero_()
            else:
                vector.copy_(_mean(tables[name]))


def _mean(table: Tensor) -> Tensor:
    """Return the mean over the replicas, added in order, shape (length,); rounded for whole numbers."""
    total = torch.zeros_like(table[0], dtype=torch.float64)
    for one in table:
        total += one
    mean = total / len(table)
    if not table.is_floating_point():
        mean = mean.round()
    return mean.to(table.dtype)


# In a round there are several exchanges, each of a part of the states. Then all members swap all states, so that each
# has every replica's: a worker may join or leave at that point, and if one is lost, the others go back to it. No bit
# depends on the number of exchanges in a round.

_ENOUGH_UPDATES = 1024
"""Number of updates after which a round makes no further exchange: a member keeps only a few thousand updates' rows."""


class LogicalReplicas(ABC):
    """A strategy in which logical replicas train by themselves and exchange at most `most_exchanges` times a round.

    A subclass makes the exchange in `mix`, and overrides `register` if a replica keeps something other than its
    weights, its optimizer's state and its buffers. If it has a centre, `centre` is evaluated, else the replicas' mean.
    """

    has_centre = False
    most_exchanges = 16

    @staticmethod
    def register(replica: Replica) -> None:
        """Register the state of each replica: its weights, its optimizer's state and its buffers."""
        register_copies(replica)

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.replica = setting.replica
        self.group = setting.group
        self.copies = ReplicaStates(setting.replica)
        self.local = LocalUpdates(setting)
        self.runs = lay_out(self.local.replicas, self.group.size).runs
        self.centre = self.replica.parameters.vector.data.clone()
        self.exchange_seconds = 0.0
        self.wait_seconds = 0.0
        self.compression_error: float | None = None

    @abstractmethod
    def mix(self, states: dict[int, State], turn: int, *, stop: bool = False) -> bool:
        """Make exchange number `turn`: move the states of this member's replicas.

        `stop` is whether this member has been asked to stop. Return whether the round ends here, the same for all
        members. Raises PeerLost.
        """

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Make the exchanges of a round, or as many as the epoch has left; `mix` may end the round earlier."""
        replica = self.replica
        began = time.perf_counter()
        self.exchange_seconds = 0.0
        self.wait_seconds = 0.0
        before = replica.parameters.vector.data.clone()
        self.centre.copy_(before)
        periods = self._periods()
        updates = sum(len(period) for period in periods)
        # The sums of the losses, and in the last column the requested stop.
        sums = torch.zeros(self.local.replicas, updates + 1, dtype=torch.float32)
        try:
            made = self._train_and_mix(periods, sums, stop_requested)
        except BaseException:
            # `copies` still has the states before the round, so a round that fails leaves no trace.
            self._end_round(self.copies.turn, before)
            replica.is_whole = True
            raise
        self._end_round(self.copies.turn + made, self.centre)
        steps = tuple(step for period in periods[:made] for step in period)
        replica.moved_to(steps[-1].after)
        *losses, stop = sums.double().sum(dim=0).tolist()
        done = committed(steps, losses, stop=stop > 0)
        return Round(
            done=done,
            stop=stop > 0,
            compute_seconds=time.perf_counter() - began - self.exchange_seconds,
            exchange_seconds=self.exchange_seconds - self.wait_seconds,
            wait_seconds=self.wait_seconds,
            figures=ExchangeFigures(replica_distance=self.copies.distance(), compression_error=self.compression_error),
        )

    def _periods(self) -> tuple[tuple[Step, ...], ...]:
        """Return the updates of a round, a group for each exchange. An epoch's end ends the round, because an
        evaluation may be due there.
        """
        every = self.replica.spec.exchange.settings.every_updates
        periods = []
        for period in islice(rounds_from(self.replica.plan, self.replica.position, every), self.most_exchanges):
            periods.append(period)
            updates = period[-1].after.update - self.replica.position.update
            if not period[-1].after.offset or updates >= _ENOUGH_UPDATES:
                break
        return tuple(periods)

    def _train_and_mix(
        self, periods: Sequence[Sequence[Step]], sums: Tensor, stop_requested: Callable[[], bool]
    ) -> int:
        """Train and exchange through the periods, put each replica's state into `copies`, and return the number of
        exchanges.
        """
        lo, hi = self.local.run
        states = {number: self.copies.of(number) for number in range(lo, hi)}
        made = 0
        done = 0
        over = False
        while made < len(periods) and not over:
            period = periods[made]
            with self.setting.watchdog:
                self.train(states, period, sums[:, done : done + len(period)])
            with self._exchanging():
                over = self.mix(states, self.copies.turn + made, stop=stop_requested())
            made += 1
            done += len(period)
        with self._exchanging():
            sums[lo:hi, -1] = float(stop_requested())
            self._swap_all(states, sums)
        return made

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.exchange_seconds += time.perf_counter() - began

    def _end_round(self, turn: int, centre: Tensor) -> None:
        """Give the model the state that all processes share after `turn` exchanges."""
        self.replica.is_whole = False
        self.copies.load_mean(turn)
        if self.has_centre:
            self.replica.parameters.vector.data.copy_(centre)

    def train(self, states: dict[int, State], steps: Sequence[Step], losses: Tensor) -> None:
        """Make these updates with each of this member's replicas, and add their losses to its row of `losses`."""
        for number, state in states.items():
            self.copies.load(state)
            self.local.make(number, steps, losses[number])
            self.copies.store(state)

    def _swap_all(self, states: dict[int, State], sums: Tensor) -> None:
        """Send all states and sums to every member; if that fails, `copies` stays unchanged."""
        # Copies, which replace the tables only when all have arrived.
        whole = {name: table.clone() for name, table in self.copies.stacked().items()}
        for number, state in states.items():
            for name, vector in state.items():
                whole[name][number] = vector
        for table in (*whole.values(), sums):
            parts = {rank: table[lo:hi].view(-1) for rank, (lo, hi) in enumerate(self.runs) if lo < hi}
            mine = parts.pop(self.group.rank, None)
            others = [rank for rank in range(self.group.size) if rank != self.group.rank]
            self.swap({} if mine is None else dict.fromkeys(others, mine), parts)
        self.copies.replace(whole)

    def swap(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
        """Swap as Group.swap does, and count the time. Raises PeerLost."""
        began = time.perf_counter()
        self.group.swap(outgoing, incoming)
        self.wait_seconds += time.perf_counter() - began
