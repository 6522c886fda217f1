"""Logical replicas that stay apart: they step by themselves, and now and then each moves towards others.

In a round there are several such exchanges, each of a part of the states. Then all members
swap all states, so that each has every replica's: a worker may join or leave there, and if one is lost, the others go
back to it. How often that is changes no bit.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from batchgrowth.plan import Step
from batchgrowth.rounds import rounds_from
from torch import Tensor

from batchgrowth_trainer.exchange.local_updates import LocalUpdates, committed
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.replica.tree import lay_out

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
