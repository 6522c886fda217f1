"""Logical replicas that stay apart: they step by themselves, and now and then each moves towards others.

In a round there are several such exchanges, between neighbours alone. Then all members
swap all states, so that each has every replica's: a worker may join or leave there, and if one is lost, the others go
back to it. How often that is changes no bit.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice

import torch
from batchgrowth.plan import Step
from batchgrowth.rounds import rounds_from
from torch import Tensor

from batchgrowth_trainer.exchange.local_updates import LocalUpdates, committed
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.replica.tree import lay_out

_EXCHANGES = 16  # in a round

State = dict[str, Tensor]


class Apart(ABC):
    """See Strategy; `mix` is the exchange. `centre` are the weights that are evaluated, where `has_centre`; else it is
    the mean of the replicas.
    """

    has_centre = False

    def __init__(self, setting: Setting) -> None:
        copies = setting.replica.copies
        assert copies is not None
        self.setting, self.replica, self.group, self.copies = setting, setting.replica, setting.group, copies
        self.local = LocalUpdates(setting)
        self.runs = lay_out(self.local.replicas, self.group.size).runs
        self.centre = self.replica.parameters.vector.data.clone()
        self.wait_seconds, self.bytes_sent = 0.0, 0

    @abstractmethod
    def mix(self, states: dict[int, State], turn: int) -> None:
        """Exchange number `turn`: move the states of this member's replicas. Raises PeerLost."""

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Sixteen exchanges, or as many as are left of the epoch."""
        replica, began = self.replica, time.perf_counter()
        self.wait_seconds, self.bytes_sent = 0.0, 0
        before = replica.parameters.vector.data.clone()
        self.centre.copy_(before)
        periods = self._periods()
        steps = tuple(step for period in periods for step in period)
        sums = torch.zeros(self.local.replicas, len(steps) + 1)  # of the losses, and where a stop is requested
        try:
            seconds = self._train_and_mix(periods, sums, stop_requested)
        except BaseException:
            self._settle(self.copies.turn, before)
            raise
        self._settle(self.copies.turn + len(periods), self.centre)
        replica.moved_to(steps[-1].after)
        *losses, stop = sums.double().sum(dim=0).tolist()
        done = committed(replica, steps, losses, stop=stop > 0)
        computing = time.perf_counter() - began - seconds
        times = computing, seconds - self.wait_seconds, self.wait_seconds
        return Round(done, stop > 0, *times, self.bytes_sent, self.copies.distance())

    def _periods(self) -> tuple[tuple[Step, ...], ...]:
        """The updates of a round, between one exchange and the next; an evaluation may be due at an epoch's end."""
        every = self.replica.spec.exchange.settings.every_updates
        periods = []
        for period in islice(rounds_from(self.replica.plan, self.replica.position, every), _EXCHANGES):
            periods.append(period)
            if not period[-1].after.offset:
                break
        return tuple(periods)

    def _train_and_mix(
        self, periods: Sequence[Sequence[Step]], sums: Tensor, stop_requested: Callable[[], bool]
    ) -> float:
        """Leave every replica's state after the periods in `copies`; the seconds of exchanging. Raises PeerLost."""
        lo, hi = self.local.run
        states = {number: self.copies.of(number) for number in range(lo, hi)}
        seconds, done = 0.0, 0
        for turn, period in enumerate(periods, self.copies.turn):
            with self.setting.watched:
                self._train(states, period, sums[:, done : done + len(period)])
            done += len(period)
            began = time.perf_counter()
            self.mix(states, turn)
            seconds += time.perf_counter() - began
        began = time.perf_counter()
        sums[lo:hi, -1] = float(stop_requested())
        self._swap_all(states, sums)
        return seconds + time.perf_counter() - began

    def _settle(self, turn: int, centre: Tensor) -> None:
        self.copies.settle(turn)
        if self.has_centre:
            self.replica.parameters.vector.data.copy_(centre)

    def _train(self, states: dict[int, State], steps: Sequence[Step], losses: Tensor) -> None:
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
