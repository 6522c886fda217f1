"""Logical replicas: they step by themselves, and now and then each moves towards others."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice

import torch
from batchgrowth.schedule.stages import Step, rounds_from
from batchgrowth.shards import shard_bounds
from torch import Tensor

from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.replica.data import Request
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.rows import LOSS, Committed, lay_out

# --- The updates that a logical replica makes by itself, with its part of each batch ---


class LocalUpdates:
    """Trains the replicas `run` of this member, one after another, for some updates each."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._replica = setting, setting.replica
        exchange = self._replica.spec.exchange
        self.replicas, self._every = exchange.replicas, exchange.settings.every_updates
        self.run = lay_out(self.replicas, setting.group.size).runs[setting.group.rank]

    def make(self, number: int, steps: Sequence[Step], losses: Tensor) -> int:
        """Make these updates with the model as it is, as replica `number`; the examples that it took.

        Writes the sum of the losses of each update's examples into `losses`. Raises PeerLost once the generation is
        over, and the errors of a replica.
        """
        seen = 0
        for index, step in enumerate(steps):
            run, examples = share_of(step, number, self.replicas)
            if examples:
                total = self._replica.sum_of(step, run, partial(self._ahead, number, index, steps))
                sums, _, _ = self._replica.step(step, total.row, examples)
                losses[index] = sums.by_name[LOSS.name]
                self._replica.rows.release([total])
                seen += examples
            self._setting.check()
        return seen

    def _ahead(self, number: int, index: int, steps: Sequence[Step], shard: int) -> Iterator[Request]:
        """The requests of this member from that shard on: it reads the updates of one replica after another's."""
        plan = self._replica.plan
        present = ((step, number) for step in steps[index:])
        others = ((step, later) for later in range(number + 1, self.run[1]) for step in steps)
        rounds = rounds_from(plan, steps[-1].after, self._every)
        future = ((step, each) for later in rounds for each in range(*self.run) for step in later)
        for step, replica in chain(present, others, future):
            run, examples = share_of(step, replica, self.replicas)
            for each in range(*run) if examples else ():
                if step is not steps[index] or replica != number or each >= shard:
                    yield self._replica.requests.of(plan, step, each)


def share_of(step: Step, number: int, replicas: int) -> tuple[tuple[int, int], int]:
    """The shards of an update that a logical replica computes, and how many examples they have."""
    each = step.shards // replicas
    run = number * each, (number + 1) * each
    bounds = shard_bounds(step.examples, step.shards)
    return run, bounds[run[1]] - bounds[run[0]]


def committed(
    replica: Replica, steps: Sequence[Step], losses: Sequence[float], *, stop: bool
) -> tuple[tuple[Step, Committed], ...]:
    """The updates of a round; `losses` are the sums over their examples, and may be followed by unused places."""
    return tuple(
        (step, Committed(loss / step.examples, replica.growth.learning_rate(step), stop))
        for step, loss in zip(steps, losses, strict=False)
    )


# --- Logical replicas that stay apart: they step by themselves, and now and then each moves towards others ---
# In a round there are several such exchanges, each of a part of the states. Then all members
# swap all states, so that each has every replica's: a worker may join or leave there, and if one is lost, the others go
# back to it. How often that is changes no bit.

State = dict[str, Tensor]
_ENOUGH_UPDATES = 1024
"""After that many updates no further exchange begins in a round: a member keeps the rows of a few thousand."""


class Apart(ABC):
    """See Strategy; `mix` is the exchange, of which a round has `most_exchanges` at most. `centre` are the weights that
    are evaluated, where `has_centre`; else it is the mean of the replicas.
    """

    has_centre = False
    most_exchanges = 16

    def __init__(self, setting: Setting) -> None:
        copies = setting.replica.copies
        assert copies is not None
        self.setting, self.replica, self.group, self.copies = setting, setting.replica, setting.group, copies
        self.local = LocalUpdates(setting)
        self.runs = lay_out(self.local.replicas, self.group.size).runs
        self.centre = self.replica.parameters.vector.data.clone()
        self.exchange_seconds, self.wait_seconds, self.bytes_sent = 0.0, 0.0, 0
        self.compression_error: float | None = None

    @abstractmethod
    def mix(self, states: dict[int, State], turn: int, *, stop: bool = False) -> bool:
        """Exchange number `turn`: move the states of this member's replicas. `stop` is whether this member has been
        asked to stop; the answer, the same for all members, is whether the round ends here. Raises PeerLost.
        """

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """As many exchanges as a round has, or as are left of the epoch; fewer if `mix` ends it."""
        replica, began = self.replica, time.perf_counter()
        self.exchange_seconds, self.wait_seconds, self.bytes_sent = 0.0, 0.0, 0
        before = replica.parameters.vector.data.clone()
        self.centre.copy_(before)
        periods = self._periods()
        updates = sum(len(period) for period in periods)
        sums = torch.zeros(self.local.replicas, updates + 1)  # of the losses, and where a stop is requested
        try:
            made = self._train_and_mix(periods, sums, stop_requested)
        except BaseException:
            self._settle(self.copies.turn, before)
            replica.is_whole = True
            raise
        self._settle(self.copies.turn + made, self.centre)
        steps = tuple(step for period in periods[:made] for step in period)
        replica.moved_to(steps[-1].after)
        *losses, stop = sums.double().sum(dim=0).tolist()
        done = committed(replica, steps, losses, stop=stop > 0)
        computing = time.perf_counter() - began - self.exchange_seconds
        times = computing, self.exchange_seconds - self.wait_seconds, self.wait_seconds
        seen = self.copies.distance(), None, self.compression_error
        return Round(done, stop > 0, *times, self.bytes_sent, *seen)

    def _periods(self) -> tuple[tuple[Step, ...], ...]:
        """The updates of a round, between one exchange and the next; an evaluation may be due at an epoch's end."""
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
        """Leave every replica's state after the periods in `copies`; how many there were. Raises PeerLost."""
        lo, hi = self.local.run
        states = {number: self.copies.of(number) for number in range(lo, hi)}
        made, done, over = 0, 0, False
        while made < len(periods) and not over:
            period = periods[made]
            with self.setting.watched:
                self.train(states, period, sums[:, done : done + len(period)])
            with self._exchanging():
                over = self.mix(states, self.copies.turn + made, stop=stop_requested())
            made, done = made + 1, done + len(period)
        with self._exchanging():
            sums[lo:hi, -1] = float(stop_requested())
            self._swap_all(states, sums)
        return made

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.exchange_seconds += time.perf_counter() - began

    def _settle(self, turn: int, centre: Tensor) -> None:
        self.replica.is_whole = False
        self.copies.settle(turn)
        if self.has_centre:
            self.replica.parameters.vector.data.copy_(centre)

    def train(self, states: dict[int, State], steps: Sequence[Step], losses: Tensor) -> None:
        """Make these updates with each replica of this member, whose losses are added to its row of `losses`."""
        for number, state in states.items():
            self.copies.load(state)
            self.local.make(number, steps, losses[number])
            self.copies.store(state)

    def _swap_all(self, states: dict[int, State], sums: Tensor) -> None:
        """Give every member all states and sums, or none."""
        whole = {name: of_all.clone() for name, of_all in self.copies.stacked.items()}
        for number, state in states.items():
            for name, vector in state.items():
                whole[name][number] = vector
        for table in (*whole.values(), sums):
            parts = {rank: table[lo:hi].view(-1) for rank, (lo, hi) in enumerate(self.runs) if lo < hi}
            mine = parts.pop(self.group.rank, None)
            others = [rank for rank in range(self.group.size) if rank != self.group.rank]
            self.swap({} if mine is None else dict.fromkeys(others, mine), parts)
            self.bytes_sent += len(others) * table.nbytes
        for name, table in whole.items():
            self.copies.stacked[name] = table

    def swap(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
        """See Group.swap; counts the time. Raises PeerLost."""
        began = time.perf_counter()
        self.group.swap(outgoing, incoming)
        self.wait_seconds += time.perf_counter() - began
